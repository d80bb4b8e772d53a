import { beforeAll, describe, expect, inject, it } from 'vitest'
import { findPythonEnv } from '../support/processes/python.ts'
import { CASES_MS, casesOf, pinsOf, runCases } from '../support/python-cases.ts'
import { describeBothModes } from '../support/sdk.ts'
import { TEST_KEY } from '../support/stack.ts'

/** The tests to run: each is a script in a Python environment. The name of an environment is that of its requirements file. */
const RUNS = await Promise.all([
  prepare('new', 'openai'),
  prepare('middle', 'openai'),
  prepare('old', 'openai'),
  prepare('new', 'anthropic'),
  prepare('old', 'anthropic'),
])

interface Run {
  /** The package with its version. */
  readonly name: string
  /** File name in test/sdk/python. */
  readonly script: string
  /** Names of the test functions in the script, in order. */
  readonly cases: readonly string[]
  /** Directory of the environment's programs; undefined if the environment could not be installed. */
  readonly bin: string | undefined
}

async function prepare(env: string, name: 'openai' | 'anthropic'): Promise<Run> {
  const pins = pinsOf(env)
  const script = `${name}_cases.py`
  const pin = pins.find((pin) => pin.startsWith(`${name}==`))
  return { name: `${pin}`, script, cases: casesOf(script), bin: await findPythonEnv(`sdk-${env}`, pins) }
}

describeBothModes('the Python SDKs', inject('kafka'), (stacks) => {
  for (const { name, script, cases, bin } of RUNS) {
    describe.skipIf(!bin)(name, () => {
      let report: Record<string, string | null>
      beforeAll(async () => {
        const { free, full, limited } = stacks
        const given = { key: TEST_KEY, free: free.url, full: full.url, limited: limited.url }
        report = await runCases(bin ?? '', script, given)
      }, CASES_MS)

      it.each(cases)('the Python SDK passes the case %s', (name) => {
        expect(report[name]).toBe(null)
      })
    })
  }
})
