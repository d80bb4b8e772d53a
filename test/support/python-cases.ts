import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'

const run = promisify(execFile)
const SCRIPTS = join(import.meta.dirname, '..', 'sdk', 'python')
/** A script ends itself before, and says where it hung. */
const SCRIPT_MS = 230_000

/** Time for a hook that runs {@link runCases}, twice if need be: some seconds on an idle machine. */
export const CASES_MS = 2 * SCRIPT_MS + 10_000

/** The pinned packages of an environment of test/sdk/python. */
export function pinsOf(env: string): string[] {
  const lines = readFileSync(join(SCRIPTS, `requirements-${env}.txt`), 'utf8').split('\n')
  return lines.filter((line) => line !== '' && !line.startsWith('#'))
}

/** The cases of a script of test/sdk/python, in their order. */
export function casesOf(script: string): string[] {
  const text = readFileSync(join(SCRIPTS, script), 'utf8')
  return [...text.matchAll(/^(?:async )?def (case_\w+)/gm)].map(([, name]) => String(name))
}

/**
 * Runs all cases of a script of test/sdk/python. With CI=true a script that breaks has a second try, as each test has: vitest
 * gives none to hooks. Why it was needed is printed.
 *
 * @param bin Of the environment.
 * @param given What the script is told.
 * @returns By case null, or why it failed
 * @throws Error when the script itself breaks or hangs
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
