/**
 * Writes the failures of a test run to a file, including those of hooks and imports. The file is needed, because CI may truncate the middle of a
 * long log.
 */
import { writeFileSync } from 'node:fs'
import type { Reporter, TestModule } from 'vitest/node'

/** Maximum lines written per error: its message, and the first lines of its stack. */
const LINES = 12

type Thrown = Readonly<{ message?: string; stack?: string }>

/** A vitest reporter that runs in addition to the default one. The file is empty if no test failed. */
export class Failures implements Reporter {
  readonly #path: string

  /** @param path Path of the file that is written at the end of the run */
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
