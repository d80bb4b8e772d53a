/** Runs test programs in a sandbox, and lists the differences from their expected results. */
import type { Sandbox, SandboxEnd, SandboxFile } from '#shared/sandbox/sandbox.ts'
import type { Expectation, Snippet } from './corpus.ts'

/** A finished run in the fields of the result body (docs/guides/code.md, The result). */
export interface RunResult {
  readonly success: boolean
  readonly exit_code: number
  readonly stdout: string
  readonly stderr: string
  readonly violations: readonly string[]
  readonly plots: readonly Uint8Array[]
}

const PNG_SIGNATURE = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a])
/** Maximum bytes of standard output, and of standard error: 1 MiB, plus the line that reports the truncation. */
const OUTPUT_BYTES_MAX = 1024 * 1024 + 200
const PLOTS_MAX = 20

export async function runCode(
  sandbox: Sandbox,
  code: string,
  {
    scan = false,
    timeoutMs = 10_000,
    signal = new AbortController().signal,
    files = [],
  }: {
    readonly scan?: boolean
    readonly timeoutMs?: number
    readonly signal?: AbortSignal
    readonly files?: readonly SandboxFile[]
  } = {},
): Promise<RunResult> {
  const texts = { stdout: '', stderr: '' }
  const plots: Uint8Array[] = []
  const end = await sandbox.run(
    { code, timeoutMs, scan, files },
    (event) => {
      if (event.type === 'plot') plots.push(event.png)
      else texts[event.stream] += event.text
    },
    signal,
  )
  return { ...texts, ...resultOf(end), stderr: texts.stderr + messageOf(end), plots }
}

/** Runs a program and returns the expectations that its result does not meet. The list is empty if the result is as expected. */
export async function brokenBy(
  sandbox: Sandbox,
  snippet: Snippet,
  options: { readonly scan: boolean; readonly expectation: Expectation },
): Promise<string[]> {
  const result = await runCode(sandbox, snippet.code, { scan: options.scan, timeoutMs: snippet.timeout_ms })
  const broken = [...boundsBroken(result), ...differences(result, options.expectation)]
  if (broken.length > 0) broken.push(`it gave ${shown(result)}`)
  return broken
}

/** Checks the limits that every run must keep, whatever its program does. */
function boundsBroken({ stdout, stderr, plots }: RunResult): string[] {
  const broken: string[] = []
  for (const [name, text] of Object.entries({ stdout, stderr })) {
    if (Buffer.byteLength(text) > OUTPUT_BYTES_MAX) broken.push(`${name} has ${Buffer.byteLength(text)} bytes`)
  }
  if (plots.length > PLOTS_MAX) broken.push(`${plots.length} plots`)
  if (plots.some((png) => !PNG_SIGNATURE.equals(png.subarray(0, 8)))) broken.push('a plot is no PNG')
  return broken
}

function differences(result: RunResult, expectation: Expectation): string[] {
  const { success, exit_code, violations, plots, plots_max } = expectation
  const checks: [string, boolean][] = [
    [`success is not ${success}`, isAmong(result.success, success)],
    [`exit_code is not ${exit_code}`, isAmong(result.exit_code, exit_code)],
    ['there are no violations', violations !== 'some' || result.violations.length > 0],
    ['there are violations', violations !== 'none' || result.violations.length === 0],
    [`there are not ${plots} plots`, plots === undefined || result.plots.length === plots],
    [`there are more than ${plots_max} plots`, plots_max === undefined || result.plots.length <= plots_max],
    [`stdout lacks ${expectation.stdout_contains}`, result.stdout.includes(expectation.stdout_contains ?? '')],
    [`stderr lacks ${expectation.stderr_contains}`, result.stderr.includes(expectation.stderr_contains ?? '')],
    ...(expectation.stdout_lacks ?? []).map((text): [string, boolean] => [
      `stdout has ${text}`,
      !result.stdout.includes(text),
    ]),
    ...(expectation.stderr_lacks ?? []).map((text): [string, boolean] => [
      `stderr has ${text}`,
      !result.stderr.includes(text),
    ]),
  ]
  return checks.filter(([, holds]) => !holds).map(([what]) => what)
}

function isAmong<T>(value: T, expected: T | readonly T[] | undefined): boolean {
  return expected === undefined || (Array.isArray(expected) ? expected.includes(value) : expected === value)
}

/** Converts the end of a run to the fields of the API's result (docs/guides/code.md, The result). */
function resultOf(end: SandboxEnd): Pick<RunResult, 'success' | 'exit_code' | 'violations'> {
  const violations = end.type === 'violations' ? end.violations : []
  if (end.type === 'exit') return { success: true, exit_code: end.exitCode, violations }
  return { success: false, exit_code: -1, violations }
}

function messageOf(end: SandboxEnd): string {
  return end.type === 'killed' ? end.message : ''
}

/** Formats a result for an error message, with truncated output. */
function shown(result: RunResult): string {
  return JSON.stringify({
    ...result,
    stdout: result.stdout.slice(-300),
    stderr: result.stderr.slice(-600),
    plots: result.plots.map(({ length }) => length),
  })
}
