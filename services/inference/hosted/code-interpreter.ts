import { z } from 'zod'
import { CodeResult, RUN_SECONDS_DEFAULT } from '#schemas/code.ts'
import type { GenerateEvent } from '#schemas/generate.ts'
import type { ChildEnd, ChildJob } from '#shared/kinds/composition.ts'
import { CODE_POINTS_MAX } from '#shared/sandbox/limits.ts'
import { tolerant } from '#shared/tolerant.ts'

/** What became of a hosted call: as its item shows it, and as the model reads it. */
export interface HostedResult {
  readonly status: Extract<GenerateEvent, { type: 'hosted_result' }>['status']
  readonly output: Record<string, unknown>[]
  readonly text: string
}

/** Characters of what a program prints that an answer shows, and that a model reads. */
const LOGS_CHARS_MAX = 256 * 1024
const READ_CHARS_MAX = 32 * 1024
/** Characters of the figures of one call: they are said in events and in the answer. */
const IMAGES_CHARS_MAX = 1024 * 1024

const Arguments = z.looseObject({ code: z.string() })
const Result = tolerant(CodeResult)

/** The code of a call, or what is wrong with it: what a model writes may be anything. */
export function codeOf(text: string): { readonly code: string; readonly problem?: string } {
  const code = readCode(text)
  if (code === undefined) return { code: text, problem: 'The arguments must be a JSON object with the text "code".' }
  if (code.trim() === '') return { code, problem: 'The code is blank.' }
  if (code.includes('\0')) return { code, problem: 'The code holds a NUL character.' }
  // A character outside the BMP counts as two here: such code is rare, and a model can write less.
  if (code.length > CODE_POINTS_MAX) {
    return { code: code.slice(0, READ_CHARS_MAX), problem: `The code is longer than ${CODE_POINTS_MAX} characters.` }
  }
  return { code }
}

function readCode(text: string): string | undefined {
  try {
    return Arguments.safeParse(JSON.parse(text)).data?.code.toWellFormed()
  } catch {
    // Models write what is no JSON, and are told so.
    return undefined
  }
}

/** The run of a call in the pool of the sandbox. */
export function codeChild(run: number, code: string, secondsMax: number): ChildJob {
  return {
    key: `hosted.${run}`,
    endpoint: '/v1/tools/code',
    kind: 'execute',
    pool: 'code',
    model: 'python',
    body: { code, timeout_seconds: Math.min(RUN_SECONDS_DEFAULT, secondsMax) },
  }
}

/** A call that was not run, and why. */
export function notRun(problem: string): HostedResult {
  return { status: 'failed', output: [{ type: 'logs', logs: problem }], text: `Error: ${problem}` }
}

/** What came of a run. */
export function codeResult(end: ChildEnd): HostedResult {
  if (end.state !== 'completed') return notRun(end.error.message)
  const read = Result.safeParse(end.result)
  if (!read.success) return notRun('The result could not be read.')
  const { success, stdout, stderr, violations, exit_code, plots } = read.data
  const gap = stdout !== '' && stderr !== '' && !stdout.endsWith('\n') ? '\n' : ''
  const logs = `${stdout}${gap}${stderr}${violations.join('\n')}`
  const output: Record<string, unknown>[] = logs === '' ? [] : [{ type: 'logs', logs: cut(logs, LOGS_CHARS_MAX) }]
  const lines = [cut(logs, READ_CHARS_MAX).trimEnd()]
  let chars = 0
  for (const { content_base64, filename } of plots) {
    chars += content_base64.length
    const isShown = chars <= IMAGES_CHARS_MAX
    if (isShown) output.push({ type: 'image', url: `data:image/png;base64,${content_base64}` })
    lines.push(`[${filename} ${isShown ? 'is shown to the user' : 'is too large to be shown'}]`)
  }
  if (exit_code !== 0) lines.push(`[exit code ${exit_code}]`)
  const text = lines.filter((line) => line !== '').join('\n') || '[no output: print what is to be seen]'
  return { status: success ? 'completed' : 'failed', output, text }
}

function cut(text: string, charsMax: number): string {
  if (text.length <= charsMax) return text
  return `${text.slice(0, charsMax).toWellFormed()}\n[${text.length - charsMax} characters left out]`
}
