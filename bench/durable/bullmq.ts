import { setTimeout as sleep } from 'node:timers/promises'
import { Queue, QueueEvents, Worker } from 'bullmq'
import { CONCURRENCY, type JobSystem, OpenJobs, PAYLOAD, RESULT } from './system.ts'

const QUEUE = 'bench'
const FIRST_READ_MS = 250
const COMPLETED_TIMEOUT_MS = 30_000

export async function openBullmq(redisPort: number): Promise<JobSystem> {
  const connection = { host: '127.0.0.1', port: redisPort }
  const queue = new Queue(QUEUE, { connection })
  await queue.waitUntilReady()
  const open = new OpenJobs()
  const worker = new Worker(QUEUE, async () => RESULT, { connection, concurrency: CONCURRENCY, autorun: false })
  worker.on('completed', () => open.end())
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
      open.begin()
      const { id } = await queue.add('nothing', PAYLOAD)
      if (id === undefined) throw new Error('a job without an id')
      return id
    },
    async completed(id) {
      const job = await queue.getJob(id)
      if (events) await job?.waitUntilFinished(events, COMPLETED_TIMEOUT_MS)
    },
    async startWork(isAwaited) {
      // Events cost CPU for each job, so the event stream is opened only if `completed` will be called.
      if (isAwaited) events ??= await openEvents(connection)
      if (running) await worker.resume()
      else running = worker.run()
    },
    drained: () => open.drained(),
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
  // Events that occur before the first read of the stream are lost, and nothing reports when the first read happens.
  // The code therefore waits for a fixed time.
  await sleep(FIRST_READ_MS)
  return events
}
