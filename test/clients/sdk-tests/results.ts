/** Results of the tests of a suite, compared to the known failures (known.yaml). */
import { readFileSync } from 'node:fs'
import { parse } from 'yaml'
import { z } from 'zod'

export interface Result {
  readonly name: string
  readonly outcome: 'passed' | 'failed' | 'skipped'
  readonly message: string
}

const Known = z.strictObject({
  suites: z.array(z.string()).describe('Names of suites, as in suites.ts'),
  tests: z.string().describe('A regular expression that the names of the tests match'),
  says: z.string().describe('A regular expression that the message of the failure matches; other failures are new'),
  reason: z.string(),
})
/** A group of tests that cannot pass. */
export type Known = z.infer<typeof Known>

export function readKnown(): Known[] {
  return z.array(Known).parse(parse(readFileSync(new URL('./known.yaml', import.meta.url), 'utf8')))
}

/** The results of a suite, in numbers and by name. */
export interface Verdict {
  readonly passed: number
  readonly skipped: number
  /** Number of failures that known.yaml lists. */
  readonly expected: number
  readonly failed: readonly Result[]
  /** Groups of known.yaml that match no failure, because their tests passed or did not run. These groups must be removed from known.yaml. */
  readonly stale: readonly Known[]
}

/** Separates known failures from new ones. */
export function judge(suite: string, results: readonly Result[], known: readonly Known[]): Verdict {
  const own = known.filter(({ suites }) => suites.includes(suite))
  const failures = results.filter(({ outcome }) => outcome === 'failed')
  const matches = ({ tests, says }: Known, { name, message }: Result) =>
    new RegExp(tests).test(name) && new RegExp(says).test(message)
  const failed = failures.filter((result) => !own.some((group) => matches(group, result)))
  return {
    passed: results.filter(({ outcome }) => outcome === 'passed').length,
    skipped: results.filter(({ outcome }) => outcome === 'skipped').length,
    expected: failures.length - failed.length,
    failed,
    stale: own.filter((group) => !failures.some((result) => matches(group, result))),
  }
}
