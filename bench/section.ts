import { join } from 'node:path'
import { Processes } from './machine/processes.ts'
import { type Kafka, openKafka } from './machine/servers.ts'

export interface Section {
  readonly name: string
  readonly summary: string
  readonly title: string
  /** Text before the tables. Describes the targets and loads, and defines the terms in the tables. */
  readonly introduction: string
  measure(run: Run): Promise<string[]>
}

export interface RunOptions {
  readonly isQuick: boolean
  readonly rounds: number
  /** Duration of each load in seconds. If undefined, the default of the section is used. */
  readonly seconds: number | undefined
  readonly compare: string | undefined
  /** Directory for CPU profiles. If undefined, no profiles are written. */
  readonly profileDir: string | undefined
}

export class Run implements AsyncDisposable {
  readonly options: RunOptions
  readonly dir: string
  readonly signal: AbortSignal
  readonly versions = new Set<string>()
  #kafka: Promise<Kafka> | undefined

  constructor(options: RunOptions, dir: string, signal: AbortSignal) {
    this.options = options
    this.dir = dir
    this.signal = signal
  }

  print(line: string): void {
    process.stdout.write(`${line}\n`)
  }

  seconds(quick: number, normal: number): number {
    return this.options.seconds ?? (this.options.isQuick ? quick : normal)
  }

  /** Calls `work` for each round and item. The items alternate within a round, so that other work on the machine affects all of them. */
  async rounds<T>(items: readonly T[], work: (item: T, round: number) => Promise<void>): Promise<void> {
    for (let round = 1; round <= this.options.rounds; round++) {
      for (const item of items) {
        this.signal.throwIfAborted()
        await work(item, round)
      }
    }
  }

  processes(): Processes {
    return new Processes(this.dir, this.options.profileDir)
  }

  async kafka(): Promise<Kafka> {
    if (!this.#kafka) this.print('starting Kafka')
    this.#kafka ??= openKafka(join(this.dir, 'servers'))
    const kafka = await this.#kafka
    this.versions.add(kafka.version)
    return kafka
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const kafka = await this.#kafka?.catch(() => undefined)
    await kafka?.[Symbol.asyncDispose]()
  }
}
