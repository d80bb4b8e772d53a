/** Writes down what failed in a run, hooks and imports too: a long log loses what stands in its middle. */
import { writeFileSync } from 'node:fs'
import type { Reporter, TestModule } from 'vitest/node'

/** Lines of one error that are kept: its message, and where it was thrown. */
const LINES = 12

/** What vitest knows of an error. */
type Thrown = Readonly<{ message?: string; stack?: string }>

/** A reporter beside vitest's own. The file that it writes is empty where nothing failed. */
export class Failures implements Reporter {
  readonly #path: string

  /** @param path Of the file that it writes when the run ends. */
  constructor(path: string) {
    this.#path = path
  }

  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly Thrown[]): void {
    const failed = [...modules.flatMap(failuresOf), ...told('outside of the tests', unhandled)]
    writeFileSync(this.#path, failed.join(''))
  }
}

function failuresOf(file: TestModule): string[] {
  const name = file.relativeModuleId
  const suites = [...file.children.allSuites()].flatMap((suite) => told(`${name} > ${suite.fullName}`, suite.errors()))
  const tests = [...file.children.allTests('failed')].flatMap((test) =>
    told(`${name} > ${test.fullName}`, test.result().errors ?? []),
  )
  return [...told(name, file.errors()), ...suites, ...tests]
}

function told(where: string, errors: readonly Thrown[]): string[] {
  return errors.map(({ message, stack }) => {
    const lines = `${message ?? ''}\n${stack ?? ''}`.split('\n').slice(0, LINES)
    return `FAILED ${where}\n${lines.map((line) => `    ${line}\n`).join('')}`
  })
}
