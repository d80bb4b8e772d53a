export const ERRNO = {
  badf: 8,
  exist: 20,
  fault: 21,
  fbig: 22,
  inval: 28,
  isdir: 31,
  mfile: 33,
  nametoolong: 37,
  noent: 44,
  nospc: 51,
  notdir: 54,
  notempty: 55,
  notsock: 57,
  notsup: 58,
  perm: 63,
  rofs: 69,
  spipe: 70,
} as const

export const FILETYPE = { characterDevice: 2, directory: 3, regularFile: 4 } as const

export const OPEN = { create: 1, directory: 2, exclusive: 4, truncate: 8 } as const

export const APPEND = 1

export const RIGHT = { read: 1n << 1n, write: 1n << 6n } as const

/**
 * All rights of a descriptor, including the right to seek. Without that right, wasi-libc would treat a character device
 * as a terminal.
 */
export const RIGHTS_ALL = (1n << 30n) - 1n

export class WasiError extends Error {
  readonly errno: number

  constructor(name: keyof typeof ERRNO) {
    super(name)
    this.errno = ERRNO[name]
  }
}

/** Thrown when the guest ends its process (proc_exit), which unwinds all frames of the guest. */
export class GuestExit extends Error {
  readonly status: number

  constructor(status: number) {
    super(`exit ${status}`)
    this.status = status
  }
}
