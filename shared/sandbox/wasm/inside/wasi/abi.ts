/*
 * Numbers of WASI preview 1 (its documentation in github.com/WebAssembly/WASI), as far as they are used here.
 */

/** What a call gives back; 0 for success. */
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

/** Types of files. */
export const FILETYPE = { characterDevice: 2, directory: 3, regularFile: 4 } as const

/** Bits of `oflags` of path_open. */
export const OPEN = { create: 1, directory: 2, exclusive: 4, truncate: 8 } as const

/** Bit of `fdflags`: every write goes to the end. */
export const APPEND = 1

/** Rights of a descriptor, as far as they decide what may be done with it. */
export const RIGHT = { read: 1n << 1n, write: 1n << 6n } as const

/** Rights of what is no terminal: wasi-libc takes a character device for one that can neither seek nor tell. */
export const RIGHTS_ALL = (1n << 30n) - 1n

/** A call that failed: the guest sees its number as errno. */
export class WasiError extends Error {
  readonly errno: number

  constructor(name: keyof typeof ERRNO) {
    super(name)
    this.errno = ERRNO[name]
  }
}

/** The guest asked to end (proc_exit). Goes up through its frames. */
export class GuestExit extends Error {
  readonly status: number

  constructor(status: number) {
    super(`exit ${status}`)
    this.status = status
  }
}
