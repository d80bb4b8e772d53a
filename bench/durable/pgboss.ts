import { setTimeout as sleep } from 'node:timers/promises'
import { PgBoss } from 'pg-boss'
import { CONCURRENCY, type JobSystem, OpenJobs, PAYLOAD, RESULT } from './system.ts'

const QUEUE = 'bench'
/** 0.5 s is the shortest interval that pg-boss accepts. While batches are full, pg-boss polls again at once. */
const POLLING = { batchSize: CONCURRENCY, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true }
const POLL_INTERVAL_MS = 5

/** pg-boss, with its sender and worker in this process. Completion is polled, because pg-boss has no call that waits for it. */
export async function openPgBoss(databaseUrl: string): Promise<JobSystem> {
  const boss = new PgBoss(databaseUrl)
  boss.on('error', (error) => process.stderr.write(`${error}\n`))
  await boss.start()
  await boss.createQueue(QUEUE)
  const open = new OpenJobs()
  const received = new Set<string>()
  let isWorking = false
  const stopWork = async () => {
    if (isWorking) await boss.offWork(QUEUE, { wait: true })
    isWorking = false
    received.clear()
  }
  return {
    async submit() {
      open.begin()
      const id = await boss.send(QUEUE, PAYLOAD)
      if (id === null) throw new Error('the job was not created')
      return id
    },
    async completed(id) {
      while (!received.has(id)) await sleep(POLL_INTERVAL_MS)
      while ((await boss.findJobs(QUEUE, { id }))[0]?.state !== 'completed') await sleep(POLL_INTERVAL_MS)
      received.delete(id)
    },
    async startWork() {
      isWorking = true
      await boss.work(QUEUE, POLLING, async (jobs) => {
        for (const { id } of jobs) {
          received.add(id)
          open.end()
        }
        return RESULT
      })
    },
    async drained() {
      await open.drained()
      // The jobs are counted inside the handler, but pg-boss marks the last batch as completed only after the handler has returned.
      // `stopWork` waits for this.
      await stopWork()
    },
    stopWork,
    async close() {
      await stopWork()
      await boss.stop()
    },
  }
}
