import type { KafkaCluster } from '#shared/broker/kafka/cluster.ts'
import { CODE, isTransient, KafkaRefusal } from '#shared/broker/kafka/errors.ts'
import { type KafkaOptions, pause, Supervisor } from '#shared/broker/kafka/options.ts'
import type { ShareMember } from './session.ts'
import { type AssignedTopic, EPOCH, type HeartbeatResponse, shareGroupHeartbeat } from './wire.ts'

/**
 * Heartbeat interval of a new member until its first assignment, in ms. Afterwards the coordinator sets the interval.
 */
const JOIN_INTERVAL_MS = 100
/**
 * If a new member has no assignment after this number of heartbeats, then the group seems to have no partition for it. The member then uses the
 * coordinator's interval.
 */
const JOIN_HEARTBEATS_MAX = 100
const REJOIN_INTERVAL_MS = 1_000
const HEARTBEAT_TIMEOUT_MS = 5_000
/** Heartbeat interval of a member that a full group has refused, in ms. */
const FULL_INTERVAL_MS = 5_000
const REJOIN: readonly number[] = [CODE.unknownMemberId, CODE.fencedMemberEpoch, CODE.groupIdNotFound]

/**
 * Membership in a share group. Sends heartbeats to the coordinator, follows a coordinator that moves, and receives the
 * assigned partitions. Rejoins if the coordinator removed this member.
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
  #isOut = false
  #isFull = false

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

  join(): void {
    this.#beating = this.#sendHeartbeats()
  }

  stop(): void {
    this.#closing.abort()
  }

  /** Leaves the group. `stop` must be called before. */
  async leave(): Promise<void> {
    await this.#beating
    if (this.#epoch === EPOCH.first) return
    await this.#beatOnce(EPOCH.leaving, null).catch((error: unknown) => {
      this.#options.onProblem('Kafka share group could not be left; Kafka removes this member later', {
        error: String(error),
      })
    })
  }

  /** Closes the connection. The next heartbeat looks up the coordinator again. */
  async hangUp(): Promise<void> {
    if (this.#coordinator !== undefined) await this.#cluster.hangUp(this.#coordinator, this.#connectionName)
    this.#coordinator = undefined
  }

  async #sendHeartbeats(): Promise<void> {
    let heartbeats = 0
    while (!this.#closing.signal.aborted) {
      let delayMs = JOIN_INTERVAL_MS
      try {
        const { intervalMs } = await this.#heartbeat()
        this.#supervisor.progress()
        heartbeats = this.#isAssigned ? 0 : heartbeats + 1
        if (heartbeats === 0 || heartbeats > JOIN_HEARTBEATS_MAX) delayMs = intervalMs
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
      // The coordinator removed this member, after an outage or a pause longer than the session timeout. The member
      // rejoins.
      this.#epoch = EPOCH.first
      const fields = { group: this.#member.group, error: new KafkaRefusal('joining', response.errorCode).message }
      if (!this.#isOut) this.#options.onProblem('Kafka share group removed this member; rejoining', fields)
      this.#isOut = true
      return { ...response, intervalMs: REJOIN_INTERVAL_MS }
    }
    if (response.errorCode === CODE.groupMaxSizeReached) return this.#waitWhileFull(response)
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

  /**
   * Reports a full group, and lengthens the heartbeat interval until another member leaves. The process does not exit, because a restarted
   * process would find the group full as well.
   */
  #waitWhileFull(response: HeartbeatResponse): HeartbeatResponse {
    if (!this.#isFull) {
      this.#options.onProblem('Kafka share group is full; this member receives no jobs until another leaves', {
        group: this.#member.group,
        remediation:
          "raise group.share.max.size, 200 by default, in every broker's server.properties (docs/operate/scale.md)",
      })
    }
    this.#isFull = true
    return { ...response, intervalMs: FULL_INTERVAL_MS }
  }

  async #beatOnce(memberEpoch: number, topics: readonly string[] | null): Promise<HeartbeatResponse> {
    this.#coordinator ??= await this.#cluster.coordinator(this.#member.group)
    const connection = await this.#cluster.connection(this.#coordinator, this.#connectionName, HEARTBEAT_TIMEOUT_MS)
    return shareGroupHeartbeat.async(connection, { ...this.#member, memberEpoch, topics })
  }

  get #connectionName(): string {
    return `heartbeat ${this.#member.member}`
  }
}
