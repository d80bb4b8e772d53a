import { readFileSync, writeFileSync } from 'node:fs'
import { RULES } from './rules.ts'
import { type Text, textsOfRepository } from './texts.ts'

/** A text that may break the rules, with the reason. */
export interface Exception {
  readonly file: string
  /** Part of the text, as in the file. */
  readonly text: string
  readonly reason: string
}

/** A violation of a rule. */
export interface Report {
  /** Rule and file, in the form of the keys of the baseline file. */
  readonly key: string
  /** For people: file, line, rule, text and advice. */
  readonly line: string
}

const BASELINE = 'test/language/baseline.json'

export const EXCEPTIONS: readonly Exception[] = JSON.parse(readFileSync('test/language/exceptions.json', 'utf8'))

export function reportsOf(texts: readonly Text[]): Report[] {
  return texts.flatMap(({ file, line, kind, text }) => {
    if (EXCEPTIONS.some((exception) => exception.file === file && text.includes(exception.text))) return []
    return RULES.filter(({ kinds }) => kinds.includes(kind)).flatMap(({ name, advice, find }) =>
      find(text).map((part) => ({
        key: `${file} ${name}`,
        line: `${file}:${line} ${name}: "${part.slice(0, 100)}" (${advice})`,
      })),
    )
  })
}

/** Number of reports by key. */
export function countsOf(reports: readonly Report[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const { key } of reports) counts[key] = (counts[key] ?? 0) + 1
  return counts
}

/** `npm run language [-- PATH ...] [-- --write]`: prints the reports of some files, or lowers the baseline to the present counts. */
if (import.meta.main) {
  const reports = reportsOf(textsOfRepository())
  const [...paths] = process.argv.slice(2)
  if (paths[0] === '--write') {
    const counts = Object.entries(countsOf(reports)).toSorted(([a], [b]) => (a < b ? -1 : 1))
    writeFileSync(BASELINE, `${JSON.stringify(Object.fromEntries(counts), undefined, 2)}\n`)
  } else
    for (const { line } of reports)
      if (paths.length === 0 || paths.some((path) => line.startsWith(path))) process.stdout.write(`${line}\n`)
  process.stderr.write(`${reports.length} texts break a rule\n`)
}
