import { describe, expect, test } from 'vitest'
import { readHtml } from '#shared/search/documents/html.ts'
import { type BlockType, type SearchBackend, type Snapshot, sha256Of } from '#shared/search/search.ts'
import { type ReadDocument, TextBuilder } from '#shared/search/text/builder.ts'
import { PagesBackend, type RunResult, researched, spansOf } from '../../support/research/run.ts'

/** Returns the answer of a report, which is the paragraph below the first heading. */
const answerOf = ({ report }: RunResult) => report.split('\n\n')[1] ?? ''
const quotesOf = ({ annotations }: RunResult) => annotations.map(({ url_citation }) => url_citation.quote)
const ask = (question: string, pages: Record<string, string>) =>
  researched({ backends: [new PagesBackend(pages)] }, { question })

/** Simulates a search backend with one document, which was split into blocks such as headings and table rows, like a Word or HTML file. */
class DocumentBackend extends PagesBackend implements SearchBackend {
  readonly #snapshot: Snapshot

  constructor(url: string, { title, text, blocks }: ReadDocument) {
    super({ [url]: text })
    this.#snapshot = { url, title: title || url, text, blocks, sha256: sha256Of(text) }
  }

  override async read(): Promise<Snapshot> {
    return this.#snapshot
  }
}

function documentOf(blocks: readonly (readonly [BlockType, string])[]): ReadDocument {
  const builder = new TextBuilder(48 * 1024)
  for (const [type, text] of blocks) builder.add(type, text)
  return builder.build()
}

const SETTINGS = `# Resource settings

buffers_shared (integer)

Sets the amount of memory that the server uses for shared pages of its tables.

The default is typically 128 megabytes, and less if the kernel does not support it.

workers_parallel (integer)

Sets the number of workers that may serve one query together.

The default is eight, and zero disables parallel queries.
`

describe('the answer of a research report', () => {
  test('is the relevant row of a table, with the header of the table', async () => {
    const run = await researched(
      {
        backends: [
          new DocumentBackend(
            'limits.docx',
            documentOf([
              ['heading', 'Limits of the warehouse'],
              ['text', 'Table 4. Limits of each kind of goods'],
              ['row', 'Goods\tPallets\tLargest weight'],
              ['row', 'Timber\t40\t900 kg'],
              ['row', 'Paint\t12\t350 kg'],
              ['row', 'Glass\t6\t120 kg'],
              ['row', 'Wool\t80\t400 kg'],
            ]),
          ),
        ],
      },
      { question: 'What is the largest weight of glass in the warehouse?' },
    )
    expect(quotesOf(run)[0]).toBe('Glass\t6\t120 kg')
    expect(answerOf(run)).toContain('Largest weight: Glass')
    expect(quotesOf(run).some((quote) => quote.startsWith('Goods'))).toBe(false)
  })

  test('is the definition of the requested term', async () => {
    const run = await ask('What is the default of buffers_shared?', { 'https://a.example/settings': SETTINGS })
    expect(answerOf(run)).toMatch(/^buffers_shared \(integer\): The default is typically 128 megabytes/)
  })

  test('includes the term of an HTML list item, or the column headers of an HTML table row', async () => {
    const html = `<h1>Tariff of the harbour</h1><dl><dt>Wharf dues.</dt><dd>Eleven crowns per boat and night.</dd>
<dt>Crane dues.</dt><dd>Forty crowns per hour of work.</dd></dl><table><tr><th>Berth of the harbour</th><th>Pilot on duty</th></tr>
<tr><td>North quay</td><td>Tilda Marlow</td></tr><tr><td>South quay</td><td>Osric Vane</td></tr></table>`
    const document = readHtml(html, new TextBuilder(48 * 1024))
    const ask = (question: string) =>
      researched({ backends: [new DocumentBackend('tariff.html', document)] }, { question })
    expect(answerOf(await ask('How many crowns are the wharf dues?'))).toMatch(/^Wharf dues: Eleven crowns/)
    const run = await ask('Which pilot is on duty at the north quay?')
    expect(answerOf(run)).toMatch(/^Berth of the harbour \\\| Pilot on duty: North quay \\\| Tilda Marlow/)
    expect(quotesOf(run).some((quote) => quote.startsWith('Berth'))).toBe(false)
  })

  test('includes a sentence whose subject is named in the previous sentence', async () => {
    const page = `# Constitution\n\nThe Harbour Office supervises all pilots of the bay. The head of that Office is elected every four years by the
captains.\n\n# Pilots\n\nPilots are examined once, and the bay has nineteen pilots.\n`
    const run = await ask('How often is the head of the Harbour Office elected?', { 'https://a.example/law': page })
    expect(answerOf(run)).toContain('elected every four years')
  })

  test('is found by synonyms of the words in the question', async () => {
    const page = `# Bridge\n\nThe bridge of Wexley was constructed in iron. Work on the bridge commenced in 1874 under Tilda Marlow.\n
# Ferry\n\nThe ferry of Wexley is painted blue, and was sold in 1990.\n`
    const run = await ask('When did work on the bridge of Wexley begin?', { 'https://a.example/bridge': page })
    expect(answerOf(run)).toContain('commenced in 1874')
  })

  test('is not a line of code', async () => {
    const page = `# Films\n\nINSERT INTO films VALUES ('UA502', 'Bananas', 105, '1971-07-13', 'Comedy', '82 minutes');\n
A row of films is added by the statement INSERT, whose columns are named in parentheses before the word VALUES.\n`
    const run = await ask('How are rows of films added by INSERT?', { 'https://a.example/films': page })
    expect(answerOf(run)).not.toContain('UA502')
    expect(answerOf(run)).toContain('columns are named in parentheses')
  })

  test('is short for a yes-or-no question', async () => {
    const filler = Array.from(
      { length: 40 },
      (_, at) => `Pelican number ${at} compresses nothing, because messages are short.`,
    )
    const page = `# Pelican\n\nPelican compresses messages only if the client requests it.\n\n${filler.join('\n\n')}\n`
    const run = await ask('Does pelican compress messages?', { 'https://a.example/pelican': page })
    expect(answerOf(run)).toMatch(/^Pelican compresses messages only if the client requests it/)
    expect(run.annotations.length).toBeLessThan(8)
  })

  test('is short for a simple question, even if the source is long', async () => {
    const filler = Array.from(
      { length: 60 },
      (_, at) => `The tower of Ardmoor has a story number ${at} about its keeper.`,
    )
    const page = `# Tower\n\nThe tower of Ardmoor is 61 metres high.\n\n${filler.join('\n\n')}\n`
    const run = await ask('How high is the tower of Ardmoor?', { 'https://a.example/tower': page })
    expect(answerOf(run)).toContain('61 metres')
    expect(run.annotations.length).toBeLessThan(12)
  })
})

test('a report lists a requested year as a gap if no source contains the year', async () => {
  const page = '# Harbour of Wexley\n\nIn 2024 the harbour of Wexley had a revenue of 9 million.\n'
  const run = await ask('What revenue did the harbour of Wexley have in 2021?', { 'https://a.example/harbour': page })
  expect(run.annotations).toEqual([])
  expect(run.end.quality.gaps).toContain('2021')
  const same = await ask('What revenue did the harbour of Wexley have in 2024?', { 'https://a.example/harbour': page })
  expect(answerOf(same)).toContain('9 million')
})

test('a report has a section for each part of the question, and no quote contains another quote', async () => {
  const run = await ask('How often is a lease renewed, and who revokes a key?', {
    'https://a.example/leases': `# Leases\n\nA lease is renewed three times in nine seconds. It ends without a renewal. A lease that is not renewed frees its
job.\n\nA worker loses its lease when its clock stops. Each lease names one worker.\n`,
    'https://b.example/keys': `# Keys\n\nA key is revoked by an administrator such as Tilda Marlow. It cannot be used afterwards. Keys are printed once.\n
The owner of a project revokes a key too. A revoked key is refused at once. Each key belongs to one project.\n`,
  })
  expect(answerOf(run)).toContain('three times in nine seconds')
  expect(answerOf(run)).toContain('revoked by an administrator')
  const titles = [...run.report.matchAll(/^## (.*)$/gm)].map(([, title]) => title)
  expect(titles).toContain('who revokes a key')
  const quotes = quotesOf(run)
  for (const [at, quote] of quotes.entries())
    for (const [other, longer] of quotes.entries())
      expect(at !== other && longer.includes(quote), `another quote contains the quote ${quote}`).toBe(false)
  expect(spansOf(run).every(({ marker }) => /^\[\d+\]$/.test(marker))).toBe(true)
})

test('a report does not quote both a sentence and a table row with the same facts', async () => {
  const sentence = 'Ardmoor Lighthouse 61 metres is the first row of the list of heights.'
  const run = await researched(
    {
      backends: [
        new DocumentBackend(
          'heights.docx',
          documentOf([
            ['heading', 'Heights of the coast'],
            ['text', sentence],
            ['row', 'Ardmoor Lighthouse\t61 metres'],
          ]),
        ),
      ],
    },
    { question: 'How many metres high is the Ardmoor Lighthouse?' },
  )
  const quotes = quotesOf(run).map((quote) => quote.replace(/\s+/g, ' '))
  expect(quotes.length).toBeGreaterThan(0)
  for (const quote of quotes) expect(quotes.filter((other) => other.includes(quote))).toEqual([quote])
})

test('a clause of the question that only describes the situation gets no section in the report', async () => {
  const run = await ask('The ferry has three decks; which of them can a cyclist use, so that I can plan the trip?', {
    'https://a.example/ferry': `# Ferry\n\nThe ferry has three decks of steel. A cyclist can use the lower deck of the ferry. Dogs are allowed on each deck.
The upper deck of the ferry is closed in winter. The trip takes an hour. Passengers plan the trip with a map of the decks.\n`,
  })
  expect(answerOf(run)).toContain('A cyclist can use the lower deck')
  expect(run.report).not.toMatch(/^## (?:The ferry has|so that)/m)
})

test('a report marks different values in its sources as contradictory', async () => {
  const run = await ask('How high is the tower of Ardmoor?', {
    'https://a.example/tower': '# Tower\n\nThe tower of Ardmoor is 61 metres high.\n',
    'https://b.example/guide': '# Guide\n\nThe tower of Ardmoor is 64 metres high and open on Sundays.\n',
  })
  const [, differing = ''] = run.report.split('## Sources differ')
  expect(differing).toMatch(/6[14] metre here, 6[14] metre in the answer/)
})

test('a report contains no quote that is a heading or a defined term', async () => {
  const page = `# Buffers of the server\n\n${SETTINGS}\nMemory of shared buffers of the server\n\nA server that shares its buffers starts sooner than others do.\n`
  const run = await ask('Which buffers of memory does the server share?', { 'https://a.example/settings': page })
  for (const quote of quotesOf(run)) expect(quote).not.toMatch(/^(?:Memory of shared buffers|buffers_shared)/)
  expect(quotesOf(run).length).toBeGreaterThan(0)
})

test('a report quotes a default value together with the heading above the value', async () => {
  const run = await ask('What does RETRY_MAX default to?', {
    'https://a.example/settings': `# Settings\n\n## RETRY_MAX\n\nDefault: 0\n\nThe maximum number of retries of one message.\n
## RETRY_WAIT\n\nDefault: 7\n\nThe time between two retries, if RETRY_MAX allows any.\n`,
  })
  expect(answerOf(run)).toMatch(/^RETRY_MAX: Default: 0 \[\d\]/)
})

test('a report uses the documents of the product that the question names', async () => {
  const page = (name: string, seconds: number) =>
    `# Connections\n\nAn idle connection of ${name} is closed after ${seconds} seconds by default.\n`
  const run = await ask('After how many seconds is an idle connection closed by default in pelican?', {
    'heron/connections.md': page('the server', 30),
    'pelican/connections.md': page('the server', 75),
  })
  expect(answerOf(run).split('[')[0]).toContain('75 seconds')
})

test('a report quotes the definition that follows a label such as STALLED', async () => {
  const run = await ask('What does the supervisor mean when it reports a process as STALLED?', {
    'https://a.example/states': `# States of a process\n\nSTALLED (30)\n\nA start was attempted, but the end came too quickly to reach the next state.\n
RUNNING (20)\n\nThe process is up, and has been up for the whole start time.\n
# Events\n\nThe supervisor reports an event if a process leaves the state STALLED. A process that is STALLED is reported once.\n`,
  })
  expect(answerOf(run)).toContain('the end came too quickly')
})

test('the answer prefers a default value to the value of an example', async () => {
  const run = await ask('For how many seconds does the server hold a reclaimed lease?', {
    'https://a.example/leases': `# Leases\n\nFor example, the server holds a reclaimed lease for 1800 seconds in the configuration above.\n
A reclaimed lease is held by the server for a while, and the default value is 3600 seconds.\n`,
  })
  expect(answerOf(run).split('[')[0]).toContain('3600 seconds')
})

test('the answer is the sentence that contains the number in the question', async () => {
  const run = await ask('After how long does the disk spin down with a value of 252?', {
    'https://a.example/disk': `# Disk\n\nThe disk spins down after a time that the value determines, such as 5 seconds with a value of 1.\n
A value of 252 signifies a timeout of 21 minutes.\n`,
  })
  expect(answerOf(run).split('[')[0]).toContain('21 minutes')
})
