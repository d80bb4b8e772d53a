/*
 * Limits of one run, equal in every adapter (docs/guides/code.md, Limits of a run). The sandbox receives the limits with the job. The service
 * enforces the output limits too, because a sandbox is not trusted.
 */

export const CODE_POINTS_MAX = 50_000
/**
 * Maximum bytes of UTF-8 for each of stdout and stderr. Further output is dropped, and a last line reports the
 * truncation.
 */
export const OUTPUT_BYTES_MAX = 1024 * 1024
export const PLOTS_MAX = 20
export const PLOT_BYTES_MAX = 5 * 1024 * 1024
export const PLOTS_BYTES_MAX = 20 * 1024 * 1024
export const MEMORY_BYTES_MAX = 512 * 1024 * 1024
export const SCRATCH_BYTES_MAX = 64 * 1024 * 1024
export const FILE_BYTES_MAX = 32 * 1024 * 1024
export const OPEN_FILES_MAX = 128
export const PROCESSES_MAX = 64
