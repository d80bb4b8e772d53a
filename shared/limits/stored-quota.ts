import type { Blobs } from '#shared/blobs/blobs.ts'
import { ServiceError } from '#shared/error.ts'
import type { StoredBytes } from '#shared/store/stored-bytes.ts'
import type { DiskFloor } from './disk-floor.ts'

/*
 * One quota of stored bytes per project, over files, bodies and results of jobs, and conversations.
 *
 * The store counts what is committed (`shared/store/stored-bytes.ts`). What is on its way is reserved before it is written: a stream in steps of what
 * it has received, anything else as a whole. An ingress reserves a little more than it needs, so that small jobs ask the store once per
 * mebibyte rather than once each. When the row is committed the reservation has done its work and is used up: from then on the row counts.
 *
 *     quota 100 MiB, stored 98: twelve uploads at once reserve 1 MiB each; two are admitted, ten are refused at their first bytes.
 *
 * Results and events of jobs are counted, and never refused: they were paid for. A process that dies leaves reservations that end by
 * themselves.
 */

/** What a process reserves of a project beyond what it needs now, in bytes. */
const SPARE_BYTES = 1024 ** 2
/** Time after which a reservation that is not needed any more is given back. */
const IDLE_MS = 2_000

/** What {@link StoredQuota} needs. */
export interface StoredQuotaOptions {
  /** Undefined: nothing is stored but blobs of calls that run. */
  readonly bytes: StoredBytes | undefined
  /** Boot id of this process. */
  readonly boot: string
  /** Bytes that one project may store. */
  readonly most: number
  readonly floor: Pick<DiskFloor, 'require'>
}

/** What this process is about to store of one project. */
interface Project {
  readonly tenant: string
  /** Bytes of all holdings. */
  held: number
  /** Bytes that the store has granted and that no committed row has used up. */
  granted: number
  /** Bytes that the store has of this process: `granted`, and what was used up since. */
  told: number
  last: Promise<unknown>
  timer: NodeJS.Timeout | undefined
}

/** What is on its way to the store, or to a blob, of one call or job. */
export interface Holding extends Disposable {
  /** Bytes so far. */
  readonly bytes: number
  /** Reserves what is to come, where that is known: of many that come at once as many are admitted as fit. @throws ServiceError As {@link grow} */
  expect(bytes: number): Promise<void> | undefined
  /**
   * More is about to be written.
   *
   * @returns Undefined: at once.
   * @throws ServiceError `insufficient_quota` when the project may not store them; `overloaded` when the disk is nearly full
   */
  grow(bytes: number): Promise<void> | undefined
  /** A committed row counts the bytes from now on: the holding is empty. */
  stored(): void
  /** Blobs whose bytes are reserved before they are written. */
  over(blobs: Blobs): Blobs
}

/** Reserves bytes of projects (see above). */
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

  /** Gives all reservations back. */
  async close(): Promise<void> {
    this.#isClosed = true
    for (const project of this.#projects.values()) {
      clearTimeout(project.timer)
      // They end by themselves.
      if (project.told > 0) await this.#ask(project, 0).catch(() => {})
    }
  }

  /** To be called by holdings alone. */
  take(tenant: string, bytes: number): Promise<void> | undefined {
    const low = this.#options.floor.require()
    low?.catch(() => {})
    const project = this.#projectOf(tenant)
    if (!low && project.held + bytes <= project.granted) {
      project.held += bytes
      return undefined
    }
    const taken = project.last.then(() => low).then(() => this.#take(project, bytes))
    // One after the other: of two that ask at once the second sees what the first was granted.
    project.last = taken.catch(() => {})
    return taken
  }

  /** To be called by holdings alone. @param stored Those of them that a row counts. */
  giveBack(tenant: string, bytes: number, stored: number): void {
    const project = this.#projectOf(tenant)
    project.held -= bytes
    project.granted -= stored
    this.#tidyLater(project)
  }

  async #take(project: Project, bytes: number): Promise<void> {
    const wanted = project.held + bytes
    if (wanted > project.granted) {
      const { isGranted } = await this.#ask(project, wanted + SPARE_BYTES)
      if (!isGranted) {
        const exact = await this.#ask(project, wanted)
        if (!exact.isGranted) throw full(exact.used + project.held, this.#options.most)
      }
    }
    project.held += bytes
    this.#tidyLater(project)
  }

  async #ask(project: Project, wanted: number) {
    const { bytes, boot, most } = this.#options
    const before = project.granted
    const answer = (await bytes?.hold(project.tenant, boot, wanted, most)) ?? { isGranted: wanted <= most, used: 0 }
    if (!answer.isGranted) return answer
    // Rows that were committed meanwhile have used up some of it.
    project.granted = wanted - Math.max(0, before - project.granted)
    project.told = wanted
    return answer
  }

  #projectOf(tenant: string): Project {
    let project = this.#projects.get(tenant)
    if (!project) {
      project = { tenant, held: 0, granted: 0, told: 0, last: Promise.resolve(), timer: undefined }
      this.#projects.set(tenant, project)
    }
    return project
  }

  /** Renews what is held, and gives back what is not. */
  #tidyLater(project: Project): void {
    if (project.timer || this.#isClosed) return
    const delayMs = project.held > 0 ? (this.#options.bytes?.keepMs ?? IDLE_MS) / 3 : IDLE_MS
    project.timer = setTimeout(() => {
      project.timer = undefined
      project.last = project.last.then(() => this.#tidy(project)).catch(() => this.#tidyLater(project))
    }, delayMs).unref()
  }

  async #tidy(project: Project): Promise<void> {
    if (project.told > 0 || project.held > 0) await this.#ask(project, project.held)
    if (project.held > 0) this.#tidyLater(project)
    else if (project.told === 0) this.#projects.delete(project.tenant)
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
    this.#giveBack(false)
  }

  #giveBack(isStored: boolean): void {
    const reserved = this.#reserved
    const stored = isStored ? Math.min(this.bytes, reserved) : 0
    this.bytes = 0
    this.#reserved = 0
    if (reserved > 0) this.#quota.giveBack(this.#tenant, reserved, stored)
  }
}

function full(used: number, most: number): ServiceError {
  const message = `This project stores ${used} bytes of the ${most} that it may (FILES_BYTES_MAX_PER_PROJECT), with what is on its way. Delete files, batches, responses, conversations or jobs that have ended, or wait until they are not kept any more.`
  return new ServiceError('insufficient_quota', message, { isUndone: true })
}
