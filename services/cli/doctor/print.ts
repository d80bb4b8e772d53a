import { coloured, type Output, plain } from '#services/cli/text/output.ts'
import type { Finding } from '#shared/doctor/check.ts'

const LABELS = {
  ok: ['OK  ', 'green'],
  skip: ['SKIP', 'dim'],
  warn: ['WARN', 'yellow'],
  fail: ['FAIL', 'red'],
} as const
const NAME_WIDTH = 9

/** Prints the result of a check on one line; details and remedy follow on lines of their own. */
export async function printFinding(out: Output, { check, status, message, fix, details = [] }: Finding): Promise<void> {
  const [label, colour] = LABELS[status]
  const line = `${coloured(colour, label)}  ${check.padEnd(NAME_WIDTH)}  ${plain(message)}\n`
  const more = [...details.map((detail) => `- ${plain(detail)}`), ...(fix ? [`→ ${fix}`] : [])]
  await out.write(line + more.map((text) => `${' '.repeat(NAME_WIDTH + 8)}${text}\n`).join(''))
}
