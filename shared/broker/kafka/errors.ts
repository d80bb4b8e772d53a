import { findErrorBy, protocolErrors, protocolErrorsCodesById } from '@platformatic/kafka'

/** The error codes that this folder acts on (Kafka protocol guide, "Error Codes"). */
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

/** Refusals of a batch for what is in it: sent again it is refused again, and in parts perhaps only one of them is. */
export const REFUSED_RECORD: readonly number[] = [CODE.messageTooLarge, CODE.recordListTooLarge, CODE.invalidRecord]

/** A broker said no, by a code of the protocol. */
export class KafkaRefusal extends Error {
  readonly code: number
  readonly isTransient: boolean

  constructor(what: string, code: number, detail: string | null = null) {
    const { name, canRetry } = describeCode(code)
    super(`${what}: ${name}${detail ? ` (${detail})` : ''}`)
    this.code = code
    // What a broker says that stumbled, as one does for a moment that came back without the topics of a group: ending helps nobody.
    this.isTransient = canRetry || code === CODE.unknownServerError
  }
}

/** The metadata at hand names no node for this: ask again and retry. */
export class NodeUnknown extends Error {}

/** True for what passes by itself: no connection, no answer in time, or a refusal that the protocol calls retriable. */
export function isTransient(thrown: unknown): boolean {
  if (thrown instanceof NodeUnknown) return true
  if (thrown instanceof KafkaRefusal) return thrown.isTransient
  if (!(thrown instanceof Error) || findErrorBy(thrown, 'code', 'PLT_KFK_AUTHENTICATION')) return false
  const isNetwork = ['PLT_KFK_NETWORK', 'PLT_KFK_TIMEOUT'].some((code) => findErrorBy(thrown, 'code', code))
  return isNetwork || (findErrorBy(thrown, 'canRetry', true) !== null && !findErrorBy(thrown, 'canRetry', false))
}

/** Somebody else made the topic in the meantime. */
export function isTopicExists(thrown: unknown): boolean {
  return thrown instanceof Error && findErrorBy(thrown, 'apiId', 'TOPIC_ALREADY_EXISTS') !== null
}

/** Whether trying again can help against a code, and its name. Codes newer than the client's table count as final. */
export function describeCode(code: number): { readonly name: string; readonly canRetry: boolean } {
  const name = protocolErrorsCodesById[code as keyof typeof protocolErrorsCodesById]
  const known = name && protocolErrors[name as keyof typeof protocolErrors]
  return known ? { name: known.id, canRetry: known.canRetry } : { name: `error ${code}`, canRetry: false }
}

/** What a refused request answered all the same: the client throws when any part of a response carries an error. */
export function responseOf<R>(thrown: unknown): R | undefined {
  return (thrown as { readonly response?: R } | null)?.response
}
