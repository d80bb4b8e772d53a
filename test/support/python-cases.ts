import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'

const run = promisify(execFile)
const SCRIPTS = join(import.meta.dirname, '..', 'sdk', 'python')
/** Timeout inside a script, which prints where it hung. */
const SCRIPT_MS = 230_000

/** Timeout of a hook that runs {@link runCases}, with one retry. On an idle machine it takes seconds. */
export const CASES_MS = 2 * SCRIPT_MS + 10_000

/** The pinned packages of an environment of test/sdk/python. */
export function pinsOf(env: string): string[] {
  const lines = readFileSync(join(SCRIPTS, `requirements-${env}.txt`), 'utf8').split('\n')
  return lines.filter((line) => line !== '' && !line.startsWith('#'))
}

/** The cases of a script of test/sdk/python, in order. */
export function casesOf(script: string): string[] {
  const text = readFileSync(join(SCRIPTS, script), 'utf8')
  return [...text.matchAll(/^(?:async )?def (case_\w+)/gm)].map(([, name]) => String(name))
}

/**
 * Runs all cases of a script of test/sdk/python. With CI=true a crashed script is retried once, because vitest does not retry hooks; the
 * reason is printed.
 *
 * @param bin Directory of the environment.
 * @param given Arguments of the script.
 * @returns null or a failure per case
 * @throws Error if the script itself crashes or hangs
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
