import type { Gateway } from './gateways/gateways.ts'
import type { Kafka } from './machine/kafka.ts'

/** One part of the benchmark, with its own section in docs/internals/benchmarks.md. */
export interface Section {
  /** As `--only` names it. */
  readonly name: string
  /** Its heading, with the marks of Markdown. */
  readonly title: string
  /** What the section says before its figures. */
  readonly introduction: string
  /** Only when it is asked for: it takes long, or much memory. */
  readonly isLarge?: true
  /** @returns Its tables, in Markdown */
  measure(options: SectionOptions): Promise<string[]>
}

/** What a section measures with. */
export interface SectionOptions {
  readonly kafka: Kafka
  /** A folder of the run's own. */
  readonly dir: string
  /** Short and coarse. */
  readonly isQuick: boolean
  readonly rounds: number
  /** What `--seconds` says; undefined: as the section thinks best. */
  readonly seconds: number | undefined
  /** Directory of another version that is measured as well, where a section can. */
  readonly beside: string | undefined
  /** Gateways of others that are measured as well, where a section can. */
  readonly gateways: readonly Gateway[]
  /** Where CPU profiles go; undefined: none are made. */
  readonly profileDir: string | undefined
  /** For how long one model hangs beside the others. */
  readonly hangSeconds: number
  readonly print: (line: string) => void
  readonly signal: AbortSignal
}
