import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'

const run = promisify(execFile)
const SCRIPTS = join(import.meta.dirname, '..', 'sdk', 'python')
/** Timeout of one run of a Python script. */
const SCRIPT_MS = 230_000

/**
 * Timeout of a vitest hook that calls {@link runCases}: two runs, because a crashed script is retried once. On an idle machine a run takes
 * seconds.
 */
export const CASES_MS = 2 * SCRIPT_MS + 10_000

/** Returns the packages of one Python environment of test/sdk/python, with their versions, as pip reads them. */
export function pinsOf(env: string): string[] {
  const lines = readFileSync(join(SCRIPTS, `requirements-${env}.txt`), 'utf8').split('\n')
  return lines.filter((line) => line !== '' && !line.startsWith('#'))
}

/** Returns the names of the test functions (`case_…`) in a script of test/sdk/python, in order. */
export function casesOf(script: string): string[] {
  const text = readFileSync(join(SCRIPTS, script), 'utf8')
  return [...text.matchAll(/^(?:async )?def (case_\w+)/gm)].map(([, name]) => String(name))
}

/**
 * Runs all test functions (cases) of a script of test/sdk/python. With CI=true a crashed script is run once more and the reason is printed,
 * because vitest does not retry hooks.
 *
 * @param bin Directory of the Python executable.
 * @param given Arguments of the script, passed as JSON.
 * @returns For each case: its failure, or null if the case passed
 * @throws Error if the script itself crashes or exceeds the timeout
 */
export async function runCases(bin: string, script: string, given: object): Promise<Record<string, string | null>> {
  return runOnce(bin, script, given).catch((error: Error) => {
    if (process.env.CI !== 'true') throw error
    process.stderr.write(`${script} broke and runs again: ${error.message.slice(0, 4_000)}\n`)
    return runOnce(bin, script, given)
  })
}

async function runOnce(bin: string, script: string, given: object): Promise<Record<string, string | null>> {
  const options = { env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1' }, timeout: SCRIPT_MS }
  const { stdout } = await run(join(bin, 'python'), [join(SCRIPTS, script), JSON.stringify(given)], options)
  return JSON.parse(stdout)
}
