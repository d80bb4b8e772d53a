/*
 * Budgets of bytes: the memory of request bodies, the free space of a disk, and the stored bytes of a project. `capacity.ts` lists all gates
 * of a call in their order.
 *
 * 1. `ByteBudget`: a body counts until it is in a blob or its call has ended. Calls never wait for the budget: a request beyond it is refused.
 * 2. `DiskFloor`: new data is refused when a disk is nearly full. The remaining space is for results of accepted jobs, logs and the database.
 * 3. `StoredQuota`: one quota per project, over files, bodies and results of jobs, and conversations.
 *
 * How the quota works: the store counts committed rows (`shared/store/records.ts`). Bytes are reserved before they are written. A stream reserves
 * bytes in steps as its data arrives. All other data reserves its whole size. An ingress reserves 1 MiB more than it needs, so that small jobs cause
 * one request to the store per mebibyte instead of one per job. When a row commits, the row counts instead of its reservation.
 *
 * Example: the quota is 100 MiB, of which 98 are stored. Twelve uploads reserve 1 MiB each at the same time. Two are admitted, and ten are refused at their
 * first bytes.
 *
 * Results and events of jobs count but are never refused, because the caller has paid for them. If a process dies, then its reservations expire.
 */

import { statfs } from 'node:fs/promises'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { StoredBytes } from '#shared/store/records.ts'

/**
 * Measured memory per byte of a request body. Parsed strings need up to two bytes per character, and garbage is not
 * collected at once.
 */
export const HELD_PER_BYTE = 3
/** Additional memory per JSON value, in bytes. For example, an empty object has only two bytes of text but needs more memory. */
export const HELD_PER_VALUE = 64

const MEMORY_RETRY_AFTER_MS = 2_000

export interface HeldBytes {
  readonly bytes: number
  /**
   * Sets the number of bytes that count for this body.
   *
   * @throws ServiceError `overloaded` if the budget is exceeded. Nothing is changed then
   */
  hold(bytes: number): void
  shrink(bytes: number): void
  release(): void
}

export interface ByteBudgetOptions {
  readonly bytesMax: number
  /** Maximum bytes of one key, so that one key cannot use up the whole budget. */
  readonly keyBytesMax: number
}

export class ByteBudget {
  readonly #options: ByteBudgetOptions
  readonly #heldByKey = new Map<string, number>()
  #held = 0

  constructor(options: ByteBudgetOptions) {
    this.#options = options
  }

  get held(): number {
    return this.#held
  }

  get isHalfFree(): boolean {
    return this.#held <= this.#options.bytesMax / 2
  }

  /** Opens the count of one body. A body is always admitted if no other body is counted. Otherwise a body larger than the budget would never be admitted. */
  open(keyId: string): HeldBytes {
    let held = 0
    const hold = (bytes: number) => {
      const { bytesMax, keyBytesMax } = this.#options
      const ofKey = (this.#heldByKey.get(keyId) ?? 0) - held
      const others = this.#held - held
      if (bytes > held && others > 0 && others + bytes > bytesMax) throw refusal('')
      if (bytes > held && ofKey > 0 && ofKey + bytes > keyBytesMax) throw refusal(' of this key')
      held = bytes
      this.#held = others + bytes
      if (ofKey + bytes > 0) this.#heldByKey.set(keyId, ofKey + bytes)
      else this.#heldByKey.delete(keyId)
    }
    return {
      get bytes() {
        return held
      },
      hold,
      shrink: (bytes) => hold(Math.min(bytes, held)),
      release: () => hold(0),
    }
  }
}

function refusal(whose: string): ServiceError {
  const message = `The memory for request bodies${whose} is used up. Try again shortly.`
  return new ServiceError('overloaded', message, { retryAfterMs: MEMORY_RETRY_AFTER_MS, reason: 'memory' })
}

/**
 * Cache lifetime of the measured free space, in ms. Even a fast disk needs longer to fill the space that must remain
 * free.
 */
const CACHE_TTL_MS = 250
const FREE_SHARE = 1 / 20
const FREE_BYTES_MAX = 1024 ** 3
/** Retry-After for a full disk, in ms. Within this time, the periodic purge may free space. */
const DISK_RETRY_AFTER_MS = 60_000

export interface DiskSpace {
  readonly free: number
  readonly size: number
}

/** Check of free disk space. Rejects with `overloaded` if a disk has too little. Returns undefined if the cached measurement shows enough. */
export type DiskFloor = () => Promise<void> | undefined

/** @param freeMin Bytes that must stay free. Default: 5 % of the disk, at most 1 GiB. */
export function openDiskFloor(
  directories: readonly string[],
  freeMin: number | undefined,
  read: (directory: string) => Promise<DiskSpace> = spaceOf,
): DiskFloor {
  let problem: ServiceError | undefined
  let readAtMs = Number.NEGATIVE_INFINITY
  let reading: Promise<void> | undefined
  const readFree = async () => {
    // If a directory cannot be read, then this check accepts the data. The later write fails and reports the cause.
    const spaces = await Promise.all(directories.map(read)).catch(() => [])
    readAtMs = performance.now()
    problem = undefined
    for (const { free, size } of spaces) {
      const min = freeMin ?? Math.min(FREE_BYTES_MAX, Math.floor(size * FREE_SHARE))
      if (free < min) problem ??= diskFull(free, min)
    }
  }
  return () => {
    if (performance.now() - readAtMs <= CACHE_TTL_MS) return problem && Promise.reject(problem)
    reading ??= readFree().finally(() => {
      reading = undefined
    })
    return reading.then(() => {
      if (problem) throw problem
    })
  }
}

async function spaceOf(directory: string): Promise<DiskSpace> {
  const { bavail, blocks, bsize } = await statfs(directory)
  return { free: bavail * bsize, size: blocks * bsize }
}

function diskFull(free: number, min: number): ServiceError {
  const message = `The disk of the service has ${mebibytes(free)} free. New data is refused below ${mebibytes(min)} (DISK_FREE_BYTES_MIN). Only the operator of this service can free space.`
  return new ServiceError('overloaded', message, {
    retryAfterMs: DISK_RETRY_AFTER_MS,
    isUndone: true,
    reason: 'disk_full',
  })
}

function mebibytes(bytes: number): string {
  return `${Math.floor(bytes / 1024 ** 2)} MiB`
}

const SPARE_BYTES = 1024 ** 2
/** Time in ms after which an unused reservation is returned to the store. */
const IDLE_TIMEOUT_MS = 2_000

export interface StoredQuotaOptions {
  /**
   * Counts of stored bytes. Undefined if this deployment stores only the blobs of running calls, which are not counted.
   */
  readonly bytes: StoredBytes | undefined
  readonly boot: string
  readonly most: number
  readonly floor: DiskFloor
}

interface Project {
  readonly tenant: string
  held: number
  /** Bytes that the store has granted to this process and that no committed row has used yet. */
  granted: number
  /** Bytes that the store counts as reserved for this process: `granted`, plus the bytes of rows committed since the last request to the store. */
  reported: number
  last: Promise<unknown>
  timer: NodeJS.Timeout | undefined
}

export interface Holding extends Disposable {
  readonly bytes: number
  /**
   * Reserves a known size in advance, so that concurrent uploads that do not fit are refused early.
   *
   * @throws ServiceError as {@link grow}
   */
  expect(bytes: number): Promise<void> | undefined
  /**
   * Reserves bytes before they are written.
   *
   * @returns Undefined if the reservation needed no request to the store
   * @throws ServiceError `insufficient_quota` if the quota of the project is exceeded. `overloaded` if the disk is nearly full
   */
  grow(bytes: number): Promise<void> | undefined
  /** Releases the reserved bytes after the row was committed, because the bytes of the row are counted from then on. */
  stored(): void
  over(blobs: Blobs): Blobs
}

export class StoredQuota {
  readonly #options: StoredQuotaOptions
  readonly #projects = new Map<string, Project>()
  #isClosed = false

  constructor(options: StoredQuotaOptions) {
    this.#options = options
  }

  open(tenant: string): Holding {
    return new ProjectHolding(this, tenant)
  }

  async close(): Promise<void> {
    this.#isClosed = true
    for (const project of this.#projects.values()) {
      clearTimeout(project.timer)
      // If the request fails, then the reservations expire in the store.
      if (project.reported > 0) await this.#requestGrant(project, 0).catch(() => {})
    }
  }

  take(tenant: string, bytes: number): Promise<void> | undefined {
    const low = this.#options.floor()
    low?.catch(() => {})
    const project = this.#projectOf(tenant)
    if (!low && project.held + bytes <= project.granted) {
      project.held += bytes
      return undefined
    }
    const taken = project.last.then(() => low).then(() => this.#take(project, bytes))
    // Requests of a project run one after another, so that each request can use the rest of earlier grants.
    project.last = taken.catch(() => {})
    return taken
  }

  giveBack(tenant: string, bytes: number, stored: number): void {
    const project = this.#projectOf(tenant)
    project.held -= bytes
    project.granted -= stored
    this.#returnUnusedLater(project)
  }

  async #take(project: Project, bytes: number): Promise<void> {
    const wanted = project.held + bytes
    if (wanted > project.granted) {
      const { isGranted } = await this.#requestGrant(project, wanted + SPARE_BYTES)
      if (!isGranted) {
        const exact = await this.#requestGrant(project, wanted)
        if (!exact.isGranted) throw quotaExceeded(exact.used + project.held, this.#options.most)
      }
    }
    project.held += bytes
    this.#returnUnusedLater(project)
  }

  async #requestGrant(project: Project, wanted: number) {
    const { bytes, boot, most } = this.#options
    const before = project.granted
    const answer = (await bytes?.hold(project.tenant, boot, wanted, most)) ?? { isGranted: wanted <= most, used: 0 }
    if (!answer.isGranted) return answer
    // Rows that were committed during the request used a part of the earlier grant, so this part is subtracted.
    project.granted = wanted - Math.max(0, before - project.granted)
    project.reported = wanted
    return answer
  }

  #projectOf(tenant: string): Project {
    let project = this.#projects.get(tenant)
    if (!project) {
      project = { tenant, held: 0, granted: 0, reported: 0, last: Promise.resolve(), timer: undefined }
      this.#projects.set(tenant, project)
    }
    return project
  }

  #returnUnusedLater(project: Project): void {
    if (project.timer || this.#isClosed) return
    const delayMs = project.held > 0 ? (this.#options.bytes?.keepMs ?? IDLE_TIMEOUT_MS) / 3 : IDLE_TIMEOUT_MS
    project.timer = setTimeout(() => {
      project.timer = undefined
      project.last = project.last.then(() => this.#returnUnused(project)).catch(() => this.#returnUnusedLater(project))
    }, delayMs).unref()
  }

  async #returnUnused(project: Project): Promise<void> {
    if (project.reported > 0 || project.held > 0) await this.#requestGrant(project, project.held)
    if (project.held > 0) this.#returnUnusedLater(project)
    else if (project.reported === 0) this.#projects.delete(project.tenant)
  }
}

class ProjectHolding implements Holding {
  readonly #quota: StoredQuota
  readonly #tenant: string
  #reserved = 0
  bytes = 0

  constructor(quota: StoredQuota, tenant: string) {
    this.#quota = quota
    this.#tenant = tenant
  }

  expect(bytes: number): Promise<void> | undefined {
    const more = bytes - this.#reserved
    if (more <= 0) return undefined
    const taking = this.#quota.take(this.#tenant, more)
    if (!taking) this.#reserved += more
    return taking?.then(() => {
      this.#reserved += more
    })
  }

  grow(bytes: number): Promise<void> | undefined {
    const expecting = this.expect(this.bytes + bytes)
    if (!expecting) this.bytes += bytes
    return expecting?.then(() => {
      this.bytes += bytes
    })
  }

  stored(): void {
    this.#giveBack(true)
  }

  over(blobs: Blobs): Blobs {
    const grow = (bytes: number) => this.grow(bytes)
    async function* reserved(value: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
      for await (const piece of value) {
        await grow(piece.length)
        yield piece
      }
    }
    return {
      put: async (key, value) => {
        if (!Buffer.isBuffer(value)) return await blobs.put(key, reserved(value))
        await grow(value.length)
        await blobs.put(key, value)
      },
      identity: () => blobs.identity(),
      copy: async (from, to) => {
        await grow(await blobs.size(from))
        await blobs.copy(from, to)
      },
      open: (...of) => blobs.open(...of),
      size: (key) => blobs.size(key),
      get: (key) => blobs.get(key),
      delete: (key) => blobs.delete(key),
      sweep: (...of) => blobs.sweep(...of),
    }
  }

  [Symbol.dispose](): void {
    if (this.#reserved > 0) this.#giveBack(false)
  }

  #giveBack(isStored: boolean): void {
    const reserved = this.#reserved
    const stored = isStored ? Math.min(this.bytes, reserved) : 0
    this.bytes = 0
    this.#reserved = 0
    if (reserved > 0) this.#quota.giveBack(this.#tenant, reserved, stored)
  }
}

function quotaExceeded(used: number, most: number): ServiceError {
  const message = `This project uses ${used} of its ${most} bytes (FILES_BYTES_MAX_PER_PROJECT), including uploads in progress. Delete files, batches, responses, conversations or finished jobs, or wait until their retention ends.`
  return new ServiceError('insufficient_quota', message, { isUndone: true })
}
