import { CodeResult, RUN_SECONDS_DEFAULT } from '#schemas/kinds/code.ts'
import { tolerant } from '#shared/lib/tolerant.ts'
import { CODE_POINTS_MAX } from '#shared/sandbox/protocol/limits.ts'
import { type HostedInput, type HostedResult, type HostedRunner, notRun, textField } from './tool.ts'

/** Maximum characters of a program's output in the answer to the caller. The model receives at most {@link READ_CHARS_MAX}. */
const LOGS_CHARS_MAX = 256 * 1024
const READ_CHARS_MAX = 32 * 1024
/** Maximum base64 characters of all figures of one call. Figures beyond the maximum are left out. */
const IMAGES_CHARS_MAX = 1024 * 1024

const Result = tolerant(CodeResult)

export const codeInterpreter: HostedRunner = {
  read: codeOf,
  child: (code, _tool, { hosted }, { codeSecondsMax }) => ({
    endpoint: '/v1/tools/code',
    kind: 'execute',
    pool: 'code',
    model: 'python',
    body: {
      code,
      timeout_seconds: Math.min(RUN_SECONDS_DEFAULT, codeSecondsMax),
      ...(hosted?.files && { files: hosted.files }),
    },
  }),
  result: ({ result }) => codeResult(result),
}

function codeOf(text: string): HostedInput {
  const code = textField(text, 'code')
  if (code === undefined) return { input: text, problem: 'The arguments must be a JSON object with the string "code".' }
  if (code.trim() === '') return { input: code, problem: 'The code is empty.' }
  if (code.includes('\0')) return { input: code, problem: 'The code contains a NUL character.' }
  // `length` counts UTF-16 units, so each character outside the BMP counts as two. For code with such rare characters,
  // the limit is lower, and the error lets the model write a shorter program.
  if (code.length > CODE_POINTS_MAX) {
    return { input: code.slice(0, READ_CHARS_MAX), problem: `The code is longer than ${CODE_POINTS_MAX} characters.` }
  }
  return { input: code }
}

function codeResult(result: unknown): HostedResult {
  const read = Result.safeParse(result)
  if (!read.success) return notRun('The result of the tool could not be read.')
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
  const text = lines.filter((line) => line !== '').join('\n') || '[no output: use print() to show results]'
  return { status: success ? 'completed' : 'failed', output, text }
}

function cut(text: string, charsMax: number): string {
  if (text.length <= charsMax) return text
  return `${text.slice(0, charsMax).toWellFormed()}\n[${text.length - charsMax} characters left out]`
}
