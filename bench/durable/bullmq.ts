import { setTimeout as sleep } from 'node:timers/promises'
import { Queue, QueueEvents, Worker } from 'bullmq'
import { type JobSystem, PAYLOAD, RESULT, Tally, WORKERS } from './system.ts'

const QUEUE = 'bench'
const LISTENING_MS = 250

/** BullMQ: queue and worker in this process. What it has done stays in Redis, as it does in the others. */
export async function openBullmq(redisPort: number): Promise<JobSystem> {
  const connection = { host: '127.0.0.1', port: redisPort }
  const queue = new Queue(QUEUE, { connection })
  await queue.waitUntilReady()
  const tally = new Tally()
  const worker = new Worker(QUEUE, async () => RESULT, { connection, concurrency: WORKERS, autorun: false })
  worker.on('completed', () => tally.end())
  worker.on('error', (error) => process.stderr.write(`${error}\n`))
  await worker.waitUntilReady()
  let events: QueueEvents | undefined
  let running: Promise<void> | undefined
  const stopWork = async () => {
    await events?.close()
    events = undefined
    if (running) await worker.pause()
  }
  return {
    async submit() {
      tally.begin()
      const { id } = await queue.add('nothing', PAYLOAD)
      if (id === undefined) throw new Error('a job without an id')
      return id
    },
    async completed(id) {
      const job = await queue.getJob(id)
      if (events) await job?.waitUntilFinished(events, 30_000)
    },
    async startWork(isWatched) {
      // Opened only for somebody who waits: it costs every event.
      if (isWatched) events ??= await openEvents(connection)
      if (running) await worker.resume()
      else running = worker.run()
    },
    drained: () => tally.settled(),
    stopWork,
    async close() {
      await stopWork()
      await worker.close()
      await queue.close()
    },
  }
}

async function openEvents(connection: { host: string; port: number }): Promise<QueueEvents> {
  const events = new QueueEvents(QUEUE, { connection })
  await events.waitUntilReady()
  // It hears only what happens after its first read, which it does not tell of.
  await sleep(LISTENING_MS)
  return events
}
