import { setTimeout as sleep } from 'node:timers/promises'
import { PgBoss } from 'pg-boss'
import { type JobSystem, PAYLOAD, RESULT, Tally, WORKERS } from './system.ts'

const QUEUE = 'bench'
/** As often as it can be told to, and without a pause as long as it finds full batches. */
const POLLING = { batchSize: WORKERS, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true }
const CHECK_MS = 5

/** pg-boss: sender and worker in this process. It has no call that waits for a job, so completion is asked for. */
export async function openPgBoss(databaseUrl: string): Promise<JobSystem> {
  const boss = new PgBoss(databaseUrl)
  boss.on('error', (error) => process.stderr.write(`${error}\n`))
  await boss.start()
  await boss.createQueue(QUEUE)
  const tally = new Tally()
  /** Jobs that a worker has had in its hands. */
  const seen = new Set<string>()
  let isWorking = false
  const stopWork = async () => {
    if (isWorking) await boss.offWork(QUEUE, { wait: true })
    isWorking = false
    seen.clear()
  }
  return {
    async submit() {
      tally.begin()
      const id = await boss.send(QUEUE, PAYLOAD)
      if (id === null) throw new Error('the job was not created')
      return id
    },
    async completed(id) {
      while (!seen.has(id)) await sleep(CHECK_MS)
      while ((await boss.findJobs(QUEUE, { id }))[0]?.state !== 'completed') await sleep(CHECK_MS)
      seen.delete(id)
    },
    async startWork() {
      isWorking = true
      await boss.work(QUEUE, POLLING, async (jobs) => {
        for (const { id } of jobs) {
          seen.add(id)
          tally.end()
        }
        return RESULT
      })
    },
    async drained() {
      await tally.settled()
      // The last batch is completed after its handler.
      await stopWork()
    },
    stopWork,
    close: async () => {
      await stopWork()
      await boss.stop()
    },
  }
}
