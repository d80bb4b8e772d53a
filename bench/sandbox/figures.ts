/** The programs that are measured. */
export const PROGRAMS = {
  print: 'print(1)',
  plot: "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.title('squares')\nplt.show()",
} as const
export type Program = keyof typeof PROGRAMS

/** Milliseconds from asking until the result is there. */
export interface Percentiles {
  readonly p50: number
  readonly p95: number
}

/** Of runs one after another. */
export interface Latency extends Percentiles {
  /** CPU of one run, in milliseconds: of the service's side and of all processes it started; NaN where nobody may tell. */
  readonly cpu: number
}

/** One way to run code. */
export interface SandboxFigures {
  readonly name: string
  /** From nothing to the first result. Absent where each run begins with nothing. */
  readonly cold?: Readonly<Record<Program, Percentiles>>
  readonly programs: Readonly<Record<Program, Latency>>
  /** Runs of print(1) a second, with two callers a core. */
  readonly perSecond: number
  /** Resident memory of an interpreter that waits for a run, in MiB: of all that runs for those that wait, by their number. */
  readonly idleMib: number
}

/** What a run found out about sandboxes. */
export interface SandboxResults {
  readonly figures: readonly SandboxFigures[]
  /** What could not be measured, and why. */
  readonly skipped: readonly string[]
}

/** How often, and how long. */
export interface SandboxBenchOptions {
  readonly opens: number
  readonly runs: number
  readonly seconds: number
  readonly print: (text: string) => void
  readonly signal: AbortSignal
}

/** What is prepared for the service is used here as well. */
export const DATA_DIR = '.data'
