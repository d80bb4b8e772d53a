/**
 * Configures kafkajs for production on Node 24. The log goes to `onProblem`. The retries of kafkajs itself are short, because the
 * adapters retry forever. A patch of kafkajs prevents timer warnings.
 */
import { createRequire } from 'node:module'
import kafkajs, { type Kafka, type KafkaConfig, type LogEntry } from 'kafkajs'
import type { KafkaOptions } from '#shared/broker/kafka/options.ts'

const CONNECTION_TIMEOUT_MS = 1_000
const REQUEST_TIMEOUT_MS = 8_000

/** Limits of kafkajs' own retries, before the adapters receive the error. */
const RETRY = { retries: 2, initialRetryTime: 50, maxRetryTime: 500, restartOnFailure: async () => false } as const

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
 * Errors that kafkajs logs although it retries the request. Causes are a new or moving group coordinator, or a deleted topic,
 * which the topic keeper reports. Permanent errors are not in this list, because the consumer throws them.
 */
const TRANSIENT_ERRORS: ReadonlySet<string> = new Set([
  'This server does not host this topic-partition',
  'The group coordinator is not available',
  "The coordinator is loading and hence can't process requests for this group",
  'This is not the correct coordinator for this group',
])

export function createKafkaJs(options: KafkaOptions): Kafka {
  patchTimer()
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

export function isTransientInKafkaJs(thrown: unknown): boolean {
  const error = thrown as { readonly name?: string; readonly retriable?: boolean; readonly cause?: unknown } | null
  if (!error) return false
  if (error.cause) return isTransientInKafkaJs(error.cause)
  return error.retriable === true || TRANSIENT.has(error.name ?? '')
}

function report({ namespace, log }: LogEntry, options: KafkaOptions): void {
  if (namespace === 'Connection' && TRANSIENT_ERRORS.has(String(log.error))) return
  options.onProblem('kafkajs reported an error', { namespace, error: log.message, detail: log.error })
}

interface RequestQueue {
  readonly pending: readonly unknown[]
  readonly throttledUntil: number
  scheduleCheckPendingRequests(): void
}
const repaired = Symbol('sluice.mended')

/**
 * After each request with an empty queue, kafkajs sets a timer with a negative delay. Node 24 then prints a TimeoutNegativeWarning (kafkajs #1751;
 * the fix was never merged). With an empty queue and no throttle, no timer is needed.
 */
function patchTimer(): void {
  const Queue = createRequire(import.meta.url)('kafkajs/src/network/requestQueue') as {
    readonly prototype: RequestQueue
  }
  const prototype = Queue.prototype as RequestQueue & { [repaired]?: true }
  if (prototype[repaired]) return
  const original = prototype.scheduleCheckPendingRequests
  prototype.scheduleCheckPendingRequests = function scheduleCheckPendingRequests() {
    if (this.pending.length > 0 || this.throttledUntil > Date.now()) original.call(this)
  }
  prototype[repaired] = true
}
