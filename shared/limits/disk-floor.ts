import { statfs } from 'node:fs/promises'
import { ServiceError } from '#shared/error.ts'

/** How old what was read of the disk may be: less than a fast disk fills by the smallest floor in. */
const CACHE_TTL_MS = 250
/** Part of a disk, and bytes at most, that stay free unless the setting names another amount. */
const FREE_SHARE = 1 / 20
const FREE_BYTES_MAX = 1024 ** 3
/** Time after which a purge may have freed some. */
const RETRY_MS = 60_000

/** Free space of a disk, in bytes. */
export interface DiskSpace {
  readonly free: number
  readonly size: number
}

/** Refuses new data once a disk is nearly full, while results, logs and the database still find room. */
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

  /** @throws ServiceError `overloaded` while less is free. */
  require(): Promise<void> | undefined {
    if (performance.now() - this.#readAtMs > CACHE_TTL_MS) {
      this.#reading ??= this.#look().finally(() => {
        this.#reading = undefined
      })
      return this.#reading.then(() => this.#throw())
    }
    return this.#problem && Promise.reject(this.#problem)
  }

  #throw(): void {
    if (this.#problem) throw this.#problem
  }

  async #look(): Promise<void> {
    // A directory that cannot be read is no reason to refuse: what is written there says why.
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
  const message = `The disk of the service has ${mebibytes(free)} free, and nothing new is stored below ${mebibytes(min)} (DISK_FREE_BYTES_MIN). Only whoever runs this service can free some.`
  return new ServiceError('overloaded', message, { retryAfterMs: RETRY_MS, isUndone: true })
}

function mebibytes(bytes: number): string {
  return `${Math.floor(bytes / 1024 ** 2)} MiB`
}
