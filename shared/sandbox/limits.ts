/*
 * Limits of one run, the same in every adapter (docs/code.md, Limits of a run). The Python side is told them with the
 * job; the side of the service holds to the ones on output itself, since what comes out of a sandbox is not trusted
 * either.
 */

/** Longest source, in code points. */
export const CODE_POINTS_MAX = 50_000
/** Bytes of UTF-8 of each of stdout and stderr; the rest is dropped, and a last line says so. */
export const OUTPUT_BYTES_MAX = 1024 * 1024
export const PLOTS_MAX = 20
export const PLOT_BYTES_MAX = 5 * 1024 * 1024
/** Of all plots of a run together. */
export const PLOTS_BYTES_MAX = 20 * 1024 * 1024
/** Memory that a run may use beyond its warm interpreter. */
export const MEMORY_BYTES_MAX = 512 * 1024 * 1024
/** Scratch space in /tmp. */
export const SCRATCH_BYTES_MAX = 64 * 1024 * 1024
export const FILE_BYTES_MAX = 32 * 1024 * 1024
export const OPEN_FILES_MAX = 128
/** Threads and processes together; the code may start threads only. */
export const PROCESSES_MAX = 64
