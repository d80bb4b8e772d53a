import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { countsOf, EXCEPTIONS, reportsOf } from './report.ts'
import { RULES } from './rules.ts'
import { codeTexts, pageTexts, textsOfRepository } from './texts.ts'

/** Sentences that break a rule, and similar sentences that do not. */
const EXAMPLES: Record<string, { readonly broken: readonly string[]; readonly kept: readonly string[] }> = {
  subject: {
    broken: ['It waits for a slot.', 'What the worker needs.', 'A job ends. Its slot is free.', 'The same of a key.'],
    kept: ['The worker waits for a slot.', 'If it fails, the job is retried.', 'Items of a batch.'],
  },
  'headless clause': {
    broken: ['Reports what came of the requests.', 'Whether that which waits is old.'],
    kept: ['Reports the results of the requests.', 'Chooses what to run.'],
  },
  people: {
    broken: [
      'Nobody reads the record.',
      'The ingress hears of a lost worker.',
      'Tells the caller.',
      'Whoever holds the key.',
    ],
    kept: ['No process reads the record.', 'The ingress is notified of a lost worker.'],
  },
  word: {
    broken: [
      'Runs beside the calls.',
      'Mend the request.',
      'Hand it in again.',
      'The stream goes on.',
      'As far as slots are free.',
    ],
    kept: ['Runs next to the calls.', 'Fix the request.', 'Submit the job again.', 'The stream continues.'],
  },
  length: {
    broken: [`The worker ${'waits and '.repeat(13)}ends.`],
    kept: [
      `The worker ${'waits and '.repeat(11)}ends.`,
      'One. Two three. `a b c d e f g h i j k l m n o p q r s t u v w x y z`.',
    ],
  },
  name: {
    broken: [
      'LOOK_MS',
      'KEEP_MS',
      'useDeed',
      'arbiterOf',
      'readWishes',
      'inTurns',
      'ModelRooms',
      'rhythmOf',
      'TELL_MS',
      'RESTS',
      'Kept',
      'cancelManyJobs',
      'requireGivable',
      'isCaredFor',
      'bury',
    ],
    kept: ['POLL_INTERVAL_MS', 'useAction', 'LOOKUP_MS', 'turnsOf', 'RESTART_MS', 'isKept', 'PAUSE_FACTOR'],
  },
}

describe('each language rule', () => {
  it.each(RULES)('$name: reports every bad example and no good example', ({ name, find }) => {
    const { broken, kept } = EXAMPLES[name] ?? { broken: [], kept: [] }
    expect(broken.length, `examples of the rule "${name}"`).toBeGreaterThan(0)
    for (const text of broken) expect(find(text), `reports of the sentence ${text}`).not.toEqual([])
    for (const text of kept) expect(find(text), `reports of the sentence ${text}`).toEqual([])
  })

  it('applies to comments, identifiers, messages and pages', () => {
    const source = "/** It ends. */\nconst LOOK_MS = 1\n// Nobody reads.\nconst text = 'Mend the request now'\n"
    const kinds = codeTexts('services/cli/a.ts', source).map(({ kind, text, line }) => `${line} ${kind} ${text}`)
    expect(kinds).toEqual([
      '1 comment It ends.',
      '3 comment Nobody reads.',
      '2 identifier LOOK_MS',
      '4 identifier text',
      '4 message Mend the request now',
    ])
    const page = '# Title\n\nIt ends.\nStill.\n\n- One\n- Two\n\n```\nIt is code.\n```\n\n| It | b |\n'
    expect(pageTexts('docs/a.md', page).map(({ line, text }) => `${line} ${text}`)).toEqual([
      '3 It ends. Still.',
      '6 One',
      '7 Two',
      '13 It',
      '13 b',
    ])
  })
})

describe('the texts of the repository', () => {
  const reports = reportsOf(textsOfRepository())

  // The baseline file lists violations that are older than the rules. The count of a file must not rise. `npm run language -- --write`
  // stores lower counts.
  it('break no rule more often per file than the baseline file allows', () => {
    const baseline: Record<string, number> = JSON.parse(readFileSync('test/language/baseline.json', 'utf8'))
    const counts = countsOf(reports)
    const worse = Object.keys(counts).filter((key) => (counts[key] ?? 0) > (baseline[key] ?? 0))
    const lines = reports.filter(({ key }) => worse.includes(key)).map(({ line }) => line)
    expect(lines.slice(0, 50).join('\n'), `texts that break a rule; npm run language prints all of a file`).toBe('')
  })

  it('contain every text that the list of exceptions quotes, and each exception has a reason', () => {
    const unused = EXCEPTIONS.filter(({ file, text }) => !readFileSync(file, 'utf8').includes(text))
    expect(unused.map(({ text }) => text)).toEqual([])
    for (const { reason } of EXCEPTIONS) expect(reason.length, 'reason of an exception').toBeGreaterThan(20)
  })
})

describe('the glossary', () => {
  const page = readFileSync('docs/reference/glossary.md', 'utf8')
  const entries = [...page.matchAll(/^- \*\*(.+?)\*\*: (.+(?:\n {2}.+)*)/gm)].map(([, term = '', text = '']) => ({
    term,
    text,
  }))

  it('has at most 60 terms, and explains each term once, in one or two sentences', () => {
    expect(entries.length).toBeGreaterThan(30)
    expect(entries.length).toBeLessThanOrEqual(60)
    expect(new Set(entries.map(({ term }) => term.toLowerCase())).size).toBe(entries.length)
    for (const { term, text } of entries)
      expect(text.match(/[.](?=\s|$)/g)?.length ?? 0, `sentences that explain the term ${term}`).toBeLessThanOrEqual(2)
  })

  it('is in alphabetical order', () => {
    const terms = entries.map(({ term }) => term.toLowerCase())
    expect(terms).toEqual(terms.toSorted())
  })
})
