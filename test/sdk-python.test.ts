import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { beforeAll, describe, expect, inject, it } from 'vitest'
import { TEST_KEY } from './stack.ts'
import { findPythonEnv } from './support/python.ts'
import { describeBothModes } from './support/sdk.ts'

const run = promisify(execFile)
const SCRIPTS = join(import.meta.dirname, 'python')
/** Longest run of one script: seconds when the machine is idle. */
const SCRIPT_MS = 90_000

/** What runs where: the environments are named as their requirements files are. */
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
  /** Its script in test/python. */
  readonly script: string
  /** Functions of the script, in their order. */
  readonly cases: readonly string[]
  /** Directory of the environment; undefined where there is none. */
  readonly bin: string | undefined
}

async function prepare(env: string, name: 'openai' | 'anthropic'): Promise<Run> {
  const lines = readFileSync(join(SCRIPTS, `requirements-${env}.txt`), 'utf8').split('\n')
  const pins = lines.filter((line) => line !== '' && !line.startsWith('#'))
  const script = join(SCRIPTS, `${name}_cases.py`)
  const cases = [...readFileSync(script, 'utf8').matchAll(/^(?:async )?def (case_\w+)/gm)].map(([, name]) =>
    String(name),
  )
  const pin = pins.find((pin) => pin.startsWith(`${name}==`))
  return { name: `${pin}`, script, cases, bin: await findPythonEnv(`sdk-${env}`, pins) }
}

describeBothModes('on Python', inject('kafka'), (stacks) => {
  for (const { name, script, cases, bin } of RUNS) {
    describe.skipIf(!bin)(name, () => {
      let report: Record<string, string | null>
      beforeAll(async () => {
        const { free, full, limited } = stacks
        const given = { key: TEST_KEY, free: free.url, full: full.url, limited: limited.url }
        const env = { ...process.env, PYTHONDONTWRITEBYTECODE: '1' }
        const options = { env, timeout: SCRIPT_MS }
        const { stdout } = await run(join(bin ?? '', 'python'), [script, JSON.stringify(given)], options)
        report = JSON.parse(stdout)
      })

      it.each(cases)('%s', (name) => {
        expect(report[name]).toBe(null)
      })
    })
  }
})
