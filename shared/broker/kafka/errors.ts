import { findErrorBy, protocolErrors, protocolErrorsCodesById } from '@platformatic/kafka'
import { TOKEN_UNAVAILABLE } from './credentials.ts'

export const CODE = {
  unknownServerError: -1,
  none: 0,
  offsetOutOfRange: 1,
  unknownTopicOrPartition: 3,
  messageTooLarge: 10,
  recordListTooLarge: 18,
  unknownMemberId: 25,
  outOfOrderSequence: 45,
  duplicateSequence: 46,
  invalidProducerEpoch: 47,
  unknownProducerId: 59,
  groupIdNotFound: 69,
  offsetNotAvailable: 78,
  groupMaxSizeReached: 81,
  invalidRecord: 87,
  fencedMemberEpoch: 110,
  shareSessionNotFound: 122,
  invalidShareSessionEpoch: 123,
} as const

/**
 * Errors that reject a batch because of its content. A repeated batch would be rejected again. The sender therefore splits the batch, so that only the
 * faulty record is rejected.
 */
export const REFUSED_RECORD: readonly number[] = [CODE.messageTooLarge, CODE.recordListTooLarge, CODE.invalidRecord]

export class KafkaRefusal extends Error {
  readonly code: number
  readonly isTransient: boolean

  constructor(what: string, code: number, detail: string | null = null) {
    const { name, canRetry } = describeCode(code)
    super(`${what}: ${name}${detail ? ` (${detail})` : ''}`)
    this.code = code
    // An unknown server error occurs, for example, if a restarted broker has lost the topics of a group. The error counts as temporary, so that the
    // process does not exit.
    this.isTransient = canRetry || code === CODE.unknownServerError
  }
}

/** Thrown if the current metadata contains no node for a request. The caller refreshes the metadata and retries. */
export class NodeUnknown extends Error {}

/**
 * Whether an error is temporary. Temporary errors are a missing connection, a missing response, and the error codes
 * that the Kafka protocol marks as retriable.
 */
export function isTransient(thrown: unknown): boolean {
  if (thrown instanceof NodeUnknown) return true
  if (thrown instanceof KafkaRefusal) return thrown.isTransient
  if (thrown instanceof Error && findErrorBy(thrown, 'code', TOKEN_UNAVAILABLE)) return true
  if (!(thrown instanceof Error) || findErrorBy(thrown, 'code', 'PLT_KFK_AUTHENTICATION')) return false
  const isNetwork = ['PLT_KFK_NETWORK', 'PLT_KFK_TIMEOUT'].some((code) => findErrorBy(thrown, 'code', code))
  return isNetwork || (findErrorBy(thrown, 'canRetry', true) !== null && !findErrorBy(thrown, 'canRetry', false))
}

export function isTopicExists(thrown: unknown): boolean {
  return thrown instanceof Error && findErrorBy(thrown, 'apiId', 'TOPIC_ALREADY_EXISTS') !== null
}

/**
 * Returns the name of an error code, and whether a retry may succeed. Codes that the client does not define count as
 * permanent.
 */
export function describeCode(code: number): { readonly name: string; readonly canRetry: boolean } {
  const name = protocolErrorsCodesById[code as keyof typeof protocolErrorsCodesById]
  const known = name && protocolErrors[name as keyof typeof protocolErrors]
  return known ? { name: known.id, canRetry: known.canRetry } : { name: `error ${code}`, canRetry: false }
}

/** Returns the response inside an error. The client throws if any part of a response has an error code, although other parts may be valid. */
export function responseOf<R>(thrown: unknown): R | undefined {
  return (thrown as { readonly response?: R } | null)?.response
}
