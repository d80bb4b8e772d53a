import type { KafkaOptions } from './options.ts'
import { pause } from './supervision.ts'
import { type BootProblem, type KafkaAdmin, KafkaUnfitError, messageOf } from './topics.ts'

/** How often it is tried to make lost topics again, and the pause between two tries: Kafka may still be starting. */
const TRIES_MAX = 60
const TRY_INTERVAL_MS = 1_000

/**
 * Makes the topics again that a Kafka came back without because it has lost its data. Where none is missing it asks for nothing else.
 * It never rejects: what it cannot do is told to `options.onProblem`.
 *
 * @param look Opens a view of the cluster that remembers nothing of the time before, calls what it is given with it, and closes it
 * @param check The boot check, which makes what is missing
 * @param signal Ends it when it aborts
 */
export async function remakeLostTopics<Admin extends KafkaAdmin>(
  look: (use: (admin: Admin) => Promise<void>) => Promise<void>,
  check: (admin: Admin) => Promise<BootProblem[]>,
  options: KafkaOptions,
  signal: AbortSignal,
): Promise<void> {
  let failure: unknown
  for (let tries = 0; tries < TRIES_MAX && !signal.aborted; tries++) {
    try {
      return await look((admin) => remakeOnce(admin, check, options))
    } catch (error) {
      failure = error
    }
    await pause(TRY_INTERVAL_MS, signal)
  }
  if (signal.aborted) return
  options.onProblem('topics that Kafka lost could not be made again', { error: messageOf(failure) })
}

async function remakeOnce<Admin extends KafkaAdmin>(
  admin: Admin,
  check: (admin: Admin) => Promise<BootProblem[]>,
  options: KafkaOptions,
): Promise<void> {
  const names = options.topics.map(({ name }) => options.prefix + name)
  const found = await admin.partitions(names)
  const lost = names.filter((name) => !found.has(name))
  if (lost.length === 0) return
  const problems = await check(admin)
  if (problems.length > 0) throw new KafkaUnfitError(problems)
  options.onProblem('Kafka came back without topics, which were made again', { topics: lost })
}
