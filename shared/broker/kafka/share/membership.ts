import type { KafkaCluster } from '#shared/broker/kafka/cluster.ts'
import { CODE, isTransient, KafkaRefusal } from '#shared/broker/kafka/errors.ts'
import type { KafkaOptions } from '#shared/broker/kafka/options.ts'
import { pause, Supervisor } from '#shared/broker/kafka/supervision.ts'
import type { ShareMember } from './session.ts'
import { type HeartbeatResponse, shareGroupHeartbeat } from './wire/group.ts'
import { type AssignedTopic, EPOCH } from './wire/parts.ts'

/** A new member asks this often until it has an assignment, then as often as the coordinator says. */
const JOIN_INTERVAL_MS = 100
/** After this many unanswered asks the group has no partition for this member: it stays, and asks at the usual pace. */
const JOIN_ASKS_MAX = 100
/** A member that the group keeps out asks this often after that. */
const REJOIN_INTERVAL_MS = 1_000
const HEARTBEAT_TIMEOUT_MS = 5_000
/** A member that the group has no room for asks this often, until another one leaves. */
const FULL_INTERVAL_MS = 5_000
const REJOIN: readonly number[] = [CODE.unknownMemberId, CODE.fencedMemberEpoch, CODE.groupIdNotFound]

/**
 * A member's place in its share group: heartbeats to the group's coordinator, follows it when it moves, joins again when it
 * was forgotten, and learns the assigned partitions.
 */
export class Membership {
  readonly #cluster: KafkaCluster
  readonly #member: ShareMember
  readonly #options: KafkaOptions
  readonly #onAssigned: (assigned: readonly AssignedTopic[]) => void
  readonly #closing = new AbortController()
  readonly #supervisor: Supervisor
  #epoch: number = EPOCH.first
  #isAssigned = false
  #coordinator: number | undefined
  #beating: Promise<void> = Promise.resolve()
  /** The group does not know this member, and did not at its last try either. */
  #isOut = false
  /** The group has as many members as it may. */
  #isFull = false

  /** @param onAssigned Hears of every new assignment. */
  constructor(
    cluster: KafkaCluster,
    member: ShareMember,
    options: KafkaOptions,
    onAssigned: (assigned: readonly AssignedTopic[]) => void,
  ) {
    this.#cluster = cluster
    this.#member = member
    this.#options = options
    this.#onAssigned = onAssigned
    this.#supervisor = new Supervisor(`member of ${member.group}`, options, isTransient)
  }

  /** Starts to heartbeat, until `stop`. */
  join(): void {
    this.#beating = this.#keep()
  }

  /** Sends no more heartbeats. */
  stop(): void {
    this.#closing.abort()
  }

  /** Tells the group that this member leaves. Call `stop` before. */
  async leave(): Promise<void> {
    await this.#beating
    if (this.#epoch === EPOCH.first) return
    await this.#beatOnce(EPOCH.leaving, null).catch((error: unknown) => {
      this.#options.onProblem('a member could not leave its share group', { error: String(error) })
    })
  }

  /** Who coordinates the group is asked again before the next heartbeat. */
  async hangUp(): Promise<void> {
    if (this.#coordinator !== undefined) await this.#cluster.hangUp(this.#coordinator, this.#beatLane)
    this.#coordinator = undefined
  }

  async #keep(): Promise<void> {
    let asks = 0
    while (!this.#closing.signal.aborted) {
      let delayMs = JOIN_INTERVAL_MS
      try {
        const { intervalMs } = await this.#heartbeat()
        this.#supervisor.progress()
        asks = this.#isAssigned ? 0 : asks + 1
        if (asks === 0 || asks > JOIN_ASKS_MAX) delayMs = intervalMs
      } catch (error) {
        if (this.#closing.signal.aborted) return
        await this.hangUp()
        delayMs = this.#supervisor.failed(error)
        this.#cluster.suspect()
      }
      await pause(delayMs, this.#closing.signal)
    }
  }

  async #heartbeat(): Promise<HeartbeatResponse> {
    const isJoining = this.#epoch === EPOCH.first
    const response = await this.#beatOnce(this.#epoch, isJoining ? [this.#member.group] : null)
    if (REJOIN.includes(response.errorCode)) {
      // The coordinator forgot this member, after an outage or a pause longer than its session. It joins again.
      this.#epoch = EPOCH.first
      const fields = { group: this.#member.group, error: new KafkaRefusal('joining', response.errorCode).message }
      if (!this.#isOut) this.#options.onProblem('a share group forgot this member, which joins again', fields)
      this.#isOut = true
      return { ...response, intervalMs: REJOIN_INTERVAL_MS }
    }
    if (response.errorCode === CODE.groupMaxSizeReached) return this.#waitForRoom(response)
    if (response.errorCode !== CODE.none) {
      throw new KafkaRefusal(`Joining ${this.#member.group}`, response.errorCode, response.errorMessage)
    }
    this.#isOut = false
    this.#isFull = false
    this.#epoch = response.memberEpoch
    if (response.assignment) {
      this.#isAssigned = response.assignment.length > 0
      this.#onAssigned(response.assignment)
    }
    return response
  }

  /** Ending the process would not help: the next one would find the group as full. */
  #waitForRoom(response: HeartbeatResponse): HeartbeatResponse {
    if (!this.#isFull) {
      this.#options.onProblem('a share group has no room for this member, which takes no jobs until one leaves', {
        group: this.#member.group,
        fix: "raise group.share.max.size, 200 by default, in every broker's server.properties (docs/scale.md)",
      })
    }
    this.#isFull = true
    return { ...response, intervalMs: FULL_INTERVAL_MS }
  }

  async #beatOnce(memberEpoch: number, topics: readonly string[] | null): Promise<HeartbeatResponse> {
    this.#coordinator ??= await this.#cluster.coordinator(this.#member.group)
    const connection = await this.#cluster.connection(this.#coordinator, this.#beatLane, HEARTBEAT_TIMEOUT_MS)
    return shareGroupHeartbeat.async(connection, { ...this.#member, memberEpoch, topics })
  }

  get #beatLane(): string {
    return `heartbeat ${this.#member.member}`
  }
}
