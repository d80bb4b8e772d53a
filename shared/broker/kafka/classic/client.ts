/**
 * kafkajs, with what it needs to be used in production on Node 24: its log goes to `onProblem`, its retries are short,
 * because the adapters retry for ever by themselves, and its timer is mended.
 */
import { createRequire } from 'node:module'
import kafkajs, { type Kafka, type KafkaConfig, type LogEntry } from 'kafkajs'
import type { KafkaOptions } from '#shared/broker/kafka/options.ts'

const CONNECTION_TIMEOUT_MS = 1_000
const REQUEST_TIMEOUT_MS = 8_000

/** What kafkajs' own retries may take before its error reaches the adapters. */
const RETRY = { retries: 2, initialRetryTime: 50, maxRetryTime: 500, restartOnFailure: async () => false } as const

/** The names of kafkajs errors that pass by themselves though they do not say `retriable`. */
const TRANSIENT = new Set([
  'KafkaJSConnectionError',
  'KafkaJSConnectionClosedError',
  'KafkaJSRequestTimeoutError',
  'KafkaJSTimeout',
  'KafkaJSBrokerNotFound',
  'KafkaJSNoBrokerAvailableError',
  'KafkaJSGroupCoordinatorNotFound',
  'KafkaJSMetadataNotLoaded',
  'KafkaJSLockTimeout',
])

/**
 * Answers of Kafka that kafkajs logs as errors though it asks again: about the coordinator of a group that is new or moves, and
 * about a topic that was deleted, which the topic keeper reports. An error that does not pass comes from the consumer.
 */
const PASSING: ReadonlySet<string> = new Set([
  'This server does not host this topic-partition',
  'The group coordinator is not available',
  "The coordinator is loading and hence can't process requests for this group",
  'This is not the correct coordinator for this group',
])

/** Opens nothing yet: its producers, consumers and admins connect. */
export function createKafkaJs(options: KafkaOptions): Kafka {
  mendTimer()
  const config: KafkaConfig = {
    clientId: options.clientId,
    brokers: [...options.brokers],
    connectionTimeout: CONNECTION_TIMEOUT_MS,
    authenticationTimeout: REQUEST_TIMEOUT_MS,
    requestTimeout: REQUEST_TIMEOUT_MS,
    enforceRequestTimeout: true,
    retry: RETRY,
    logLevel: kafkajs.logLevel.ERROR,
    logCreator: () => (entry) => report(entry, options),
  }
  if (options.tls) config.ssl = true
  if (options.sasl) {
    const { mechanism, username, password } = options.sasl
    const name = mechanism.toLowerCase() as 'plain' | 'scram-sha-256' | 'scram-sha-512'
    config.sasl = { mechanism: name, username, password } as NonNullable<KafkaConfig['sasl']>
  }
  return new kafkajs.Kafka(config)
}

/** True for what passes by itself: no connection, no answer in time, or an error that the protocol calls retriable. */
export function isTransientInKafkaJs(thrown: unknown): boolean {
  const error = thrown as { readonly name?: string; readonly retriable?: boolean; readonly cause?: unknown } | null
  if (!error) return false
  if (error.cause) return isTransientInKafkaJs(error.cause)
  return error.retriable === true || TRANSIENT.has(error.name ?? '')
}

function report({ namespace, log }: LogEntry, options: KafkaOptions): void {
  if (namespace === 'Connection' && PASSING.has(String(log.error))) return
  options.onProblem('kafkajs reported an error', { namespace, error: log.message, detail: log.error })
}

interface RequestQueue {
  readonly pending: readonly unknown[]
  readonly throttledUntil: number
  scheduleCheckPendingRequests(): void
}
const mended = Symbol('sluice.mended')

/**
 * kafkajs sets a timer with a negative delay after each request when nothing waits, for which Node 24 prints a
 * TimeoutNegativeWarning (kafkajs #1751; the fix was never merged). With nothing waiting and no throttle there is nothing
 * to check, so no timer is needed.
 */
function mendTimer(): void {
  const Queue = createRequire(import.meta.url)('kafkajs/src/network/requestQueue') as {
    readonly prototype: RequestQueue
  }
  const prototype = Queue.prototype as RequestQueue & { [mended]?: true }
  if (prototype[mended]) return
  const original = prototype.scheduleCheckPendingRequests
  prototype.scheduleCheckPendingRequests = function scheduleCheckPendingRequests() {
    if (this.pending.length > 0 || this.throttledUntil > Date.now()) original.call(this)
  }
  prototype[mended] = true
}
