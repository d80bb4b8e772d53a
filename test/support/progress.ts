/** Prints the progress of a test run: finished files, files that are slow, and at the end the slowest ones. */
import type { Reporter, TestCase, TestModule, TestSpecification } from 'vitest/node'

/** A test file that runs longer than this is printed with each progress line. */
const SLOW_MS = 20_000
/** Interval between progress lines if no file ends. */
const EVERY_MS = 30_000
const SLOWEST = 8

/** A vitest reporter that runs in addition to the default one. The default reporter prints the results. */
export class Progress implements Reporter {
  #files = 0
  #startedMs = 0
  #timer: NodeJS.Timeout | undefined
  readonly #running = new Map<string, { sinceMs: number; test: string }>()
  readonly #took: { file: string; ms: number }[] = []

  onTestRunStart(files: readonly TestSpecification[]): void {
    this.#files = files.length
    this.#startedMs = Date.now()
    this.#timer = setInterval(() => this.#say(), EVERY_MS).unref()
  }

  onTestModuleStart(file: TestModule): void {
    this.#running.set(file.relativeModuleId, { sinceMs: Date.now(), test: '' })
  }

  onTestCaseReady(test: TestCase): void {
    const file = this.#running.get(test.module.relativeModuleId)
    if (file) file.test = test.fullName
  }

  onTestModuleEnd(file: TestModule): void {
    const { relativeModuleId: name } = file
    this.#took.push({ file: name, ms: Date.now() - (this.#running.get(name)?.sinceMs ?? Date.now()) })
    this.#running.delete(name)
    this.#say()
  }

  onTestRunEnd(): void {
    clearInterval(this.#timer)
    const slowest = this.#took.toSorted((a, b) => b.ms - a.ms).slice(0, SLOWEST)
    print(`Slowest: ${slowest.map(({ file, ms }) => `${file} ${seconds(ms)}`).join(', ')}`)
  }

  #say(): void {
    const slow = [...this.#running].filter(([, { sinceMs }]) => Date.now() - sinceMs >= SLOW_MS)
    const runs = slow.map(([file, { sinceMs, test }]) => `, ${seconds(Date.now() - sinceMs)} in ${file} > ${test}`)
    print(`${this.#took.length} of ${this.#files} files after ${seconds(Date.now() - this.#startedMs)}${runs.join('')}`)
  }
}

function seconds(ms: number): string {
  return `${Math.round(ms / 1000)} s`
}

function print(line: string): void {
  process.stdout.write(`${line}\n`)
}
