import { statfs } from 'node:fs/promises'
import { ServiceError } from '#shared/lib/error.ts'

/** Cache lifetime of the measured free space. Even a fast disk needs longer than this to fill the space of the smallest floor. */
const CACHE_TTL_MS = 250
/** Fraction of the disk that stays free by default, but at most 1 GiB. */
const FREE_SHARE = 1 / 20
const FREE_BYTES_MAX = 1024 ** 3
/** Retry-After in ms. By then, a purge may have freed space. */
const RETRY_AFTER_MS = 60_000

export interface DiskSpace {
  readonly free: number
  readonly size: number
}

/** Rejects new data when a disk is nearly full. The remaining space is for results of accepted jobs, logs and the database. */
export class DiskFloor {
  readonly #read: () => Promise<DiskSpace[]>
  readonly #freeMin: number | undefined
  #problem: ServiceError | undefined
  #readAtMs = Number.NEGATIVE_INFINITY
  #reading: Promise<void> | undefined

  /** @param freeMin Bytes that stay free; undefined: 5 % of the disk, at most 1 GiB. */
  constructor(directories: readonly string[], freeMin: number | undefined, read = spaceOf) {
    this.#read = () => Promise.all(directories.map(read))
    this.#freeMin = freeMin
  }

  /** Checks the free space, cached for 250 ms. @throws ServiceError `overloaded` if it is below the floor */
  require(): Promise<void> | undefined {
    if (performance.now() - this.#readAtMs > CACHE_TTL_MS) {
      this.#reading ??= this.#readFree().finally(() => {
        this.#reading = undefined
      })
      return this.#reading.then(() => this.#throw())
    }
    return this.#problem && Promise.reject(this.#problem)
  }

  #throw(): void {
    if (this.#problem) throw this.#problem
  }

  async #readFree(): Promise<void> {
    // If a directory is unreadable, then data is not refused here: the write itself fails with the reason.
    const spaces = await this.#read().catch(() => [])
    this.#readAtMs = performance.now()
    const low = spaces.find((space) => space.free < this.#minOf(space))
    this.#problem = low && full(low, this.#minOf(low))
  }

  #minOf({ size }: DiskSpace): number {
    return this.#freeMin ?? Math.min(FREE_BYTES_MAX, Math.floor(size * FREE_SHARE))
  }
}

async function spaceOf(directory: string): Promise<DiskSpace> {
  const { bavail, blocks, bsize } = await statfs(directory)
  return { free: bavail * bsize, size: blocks * bsize }
}

function full({ free }: DiskSpace, min: number): ServiceError {
  const message = `The disk of the service has ${mebibytes(free)} free, and nothing new is stored below ${mebibytes(min)} (DISK_FREE_BYTES_MIN). Only the operator of this service can free space.`
  return new ServiceError('overloaded', message, { retryAfterMs: RETRY_AFTER_MS, isUndone: true })
}

function mebibytes(bytes: number): string {
  return `${Math.floor(bytes / 1024 ** 2)} MiB`
}
