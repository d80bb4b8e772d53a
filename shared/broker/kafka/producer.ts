/**
 * Idempotent produce calls (KIP-98), one at a time per leading node.
 *
 * Records of a partition are numbered, and the broker drops a batch whose numbers it has already stored. A batch whose response was lost may
 * therefore be sent again, but only unchanged. If a batch with unknown outcome is abandoned or changed, then the producer starts over with a new
 * producer id. Otherwise the broker would drop the next batch as a duplicate.
 *
 * Rejected: the producer of `@platformatic/kafka`. That producer sends all batches of a call to the leader of the first partition. If another
 * partition of the call moves to a new leader, then each retry of its batch fails. Stopping that producer to end the retries discards its sequence
 * numbers.
 */
import { NumericMap, produceV9 } from '@platformatic/kafka'
import type { KafkaCluster } from './cluster.ts'
import { CODE, describeCode, isTransient, KafkaRefusal, REFUSED_RECORD, responseOf } from './errors.ts'
import { type BatchFailure, type OutgoingBatch, type OutgoingRecord, refusedRecord } from './sender.ts'

const ACKS_ALL = -1
const REPLICATION_TIMEOUT_MS = 5_000
/** Request timeout in ms, after which the connection counts as broken and the outcome of the batch is unknown. */
const REQUEST_TIMEOUT_MS = 8_000
const SEQUENCE_RANGE = 2 ** 31
const CONNECTION_NAME = 'produce'

/** Errors after which broker and producer disagree on sequence numbers. A new producer id resets the numbers. */
const IDENTITY_LOST: readonly number[] = [CODE.outOfOrderSequence, CODE.unknownProducerId, CODE.invalidProducerEpoch]

/** A producer id with the next sequence number of each partition. */
interface Identity {
  readonly producerId: bigint
  readonly producerEpoch: number
  readonly sequences: NumericMap
}

export class KafkaProducer {
  readonly #cluster: KafkaCluster
  readonly #unsure = new Map<string, readonly OutgoingRecord[]>()
  #identity: Promise<Identity> | undefined
  /** The present producer id, which is the result of `#identity`. Undefined while a new one is requested. */
  #current: Identity | undefined

  constructor(cluster: KafkaCluster) {
    this.#cluster = cluster
  }

  async produce(batches: readonly OutgoingBatch[]): Promise<readonly BatchFailure[]> {
    if (batches.some((batch) => this.#differsFromUnsure(batch))) this.#forgetIdentity()
    const failures = new Map<OutgoingBatch, BatchFailure>()
    const byLeader = Map.groupBy(batches, ({ topic, partition }) => this.#cluster.leader(topic, partition))
    try {
      const identity = await this.#currentIdentity()
      await Promise.all([...byLeader].map(([leader, own]) => this.#produceTo(leader, own, identity, failures)))
    } catch (error) {
      for (const batch of batches) failures.set(batch, { error, canRetry: true })
    }
    if (failures.size > 0) void this.#cluster.refresh()
    return batches.map((batch) => failures.get(batch))
  }

  #differsFromUnsure(batch: OutgoingBatch): boolean {
    const unsure = this.#unsure.get(keyOf(batch))
    if (!unsure) return false
    return unsure.length !== batch.records.length || unsure.some((record, index) => record !== batch.records[index])
  }

  #forgetIdentity(): void {
    this.#identity = undefined
    this.#current = undefined
    this.#unsure.clear()
  }

  async #currentIdentity(): Promise<Identity> {
    this.#identity ??= this.#cluster.newProducer().then((id) => ({ ...id, sequences: new NumericMap() }))
    const own = this.#identity
    try {
      const identity = await own
      if (this.#identity === own) this.#current = identity
      return identity
    } catch (error) {
      if (this.#identity === own) this.#identity = undefined
      throw error
    }
  }

  async #produceTo(
    leader: number,
    batches: readonly OutgoingBatch[],
    identity: Identity,
    failures: Map<OutgoingBatch, BatchFailure>,
  ): Promise<void> {
    try {
      const response = await this.#request(leader, batches, identity)
      for (const batch of batches) {
        const failure = this.#failureOf(batch, codeOf(response, batch), identity)
        if (failure) failures.set(batch, failure)
      }
    } catch (error) {
      const canRetry = isTransient(error)
      for (const batch of batches) failures.set(batch, { error, canRetry })
      if (canRetry) this.#cluster.suspect()
    }
  }

  async #request(
    leader: number,
    batches: readonly OutgoingBatch[],
    identity: Identity,
  ): Promise<produceV9.ProduceResponse> {
    const connection = await this.#cluster.connection(leader, CONNECTION_NAME, REQUEST_TIMEOUT_MS)
    const messages = batches.flatMap(({ topic, partition, records }) =>
      records.map(({ key, value }) => (key ? { topic, partition, key, value } : { topic, partition, value })),
    )
    for (const batch of batches) this.#unsure.set(keyOf(batch), batch.records)
    const options = { ...identity, compression: 'none' as const }
    try {
      return (await produceV9.api.async(
        connection,
        ACKS_ALL,
        REPLICATION_TIMEOUT_MS,
        messages,
        options,
      )) as produceV9.ProduceResponse
    } catch (error) {
      const response = responseOf<produceV9.ProduceResponse>(error)
      if (response) return response
      throw error
    }
  }

  #failureOf(batch: OutgoingBatch, code: number, identity: Identity): BatchFailure {
    const key = keyOf(batch)
    if (code === CODE.none || code === CODE.duplicateSequence) {
      const next = identity.sequences.getWithDefault(key, 0) + batch.records.length
      identity.sequences.set(key, next % SEQUENCE_RANGE)
      this.#unsure.delete(key)
      return undefined
    }
    const error = new KafkaRefusal(`Producing to ${key}`, code)
    if (IDENTITY_LOST.includes(code)) {
      // If another call has replaced the producer id while this call waited for its response, then the new id is kept.
      if (identity === this.#current) this.#forgetIdentity()
      return { error, canRetry: true }
    }
    const { canRetry } = describeCode(code)
    if (!canRetry) this.#unsure.delete(key) // The broker refused the whole batch, so nothing of it was written.
    return REFUSED_RECORD.includes(code)
      ? { error: refusedRecord(error), canRetry, isOfRecord: true }
      : { error, canRetry }
  }
}

function keyOf({ topic, partition }: OutgoingBatch): string {
  return `${topic}:${partition}`
}

function codeOf(response: produceV9.ProduceResponse, { topic, partition }: OutgoingBatch): number {
  const answers = response.responses.find(({ name }) => name === topic)?.partitionResponses
  return answers?.find(({ index }) => index === partition)?.errorCode ?? -1
}
