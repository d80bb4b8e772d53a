import { availableParallelism, cpus, totalmem } from 'node:os'
import type { Cell, Sample } from '../calls/measure.ts'
import type { TargetName } from '../calls/targets.ts'
import type { DurableResults } from '../durable/durable.ts'
import { DURABLE_INTRODUCTION, DURABLE_TITLE, renderDurable } from '../durable/report.ts'
import type { EmbedResults } from '../embeddings/embeddings.ts'
import { EMBEDDINGS_INTRODUCTION, EMBEDDINGS_TITLE, renderEmbeddings } from '../embeddings/report.ts'
import type { Footprint } from '../machine/footprint.ts'
import { RESEARCH_INTRODUCTION, RESEARCH_TITLE, renderResearch } from '../research/report.ts'
import type { ResearchResults } from '../research/research.ts'
import type { SandboxResults } from '../sandbox/figures.ts'
import { renderSandbox, SANDBOX_INTRODUCTION, SANDBOX_TITLE } from '../sandbox/report.ts'
import type { Section } from '../section.ts'
import { SECTIONS } from '../sections.ts'
import { renderTranscription, TRANSCRIPTION_INTRODUCTION, TRANSCRIPTION_TITLE } from '../transcription/report.ts'
import type { TranscriptionResults } from '../transcription/transcription.ts'
import { renderBeside } from './beside.ts'
import { added, Figures, ratio } from './figures.ts'
import { renderTable, show } from './markdown.ts'
import { renderTargets } from './verdicts.ts'

/** How long a measurement took, and the machine meanwhile. */
export interface Duration {
  readonly seconds: number
  /** Cores that all processes of the machine used on average; more than the run's own tells of a crowded machine. */
  readonly coresUsed: number
}

/** What a run found out about plain calls. */
export interface CallResults extends Duration {
  readonly samples: readonly Sample[]
  readonly footprint: Footprint
}

/** What a section of its own found out. */
export interface SectionResults extends Duration {
  readonly section: Section
  readonly tables: readonly string[]
}

/** Everything a run found out; undefined is what it did not measure. */
export interface Results {
  readonly calls: CallResults | undefined
  readonly durable: (DurableResults & Duration) | undefined
  readonly embeddings: (EmbedResults & Duration) | undefined
  readonly transcription: (TranscriptionResults & Duration) | undefined
  readonly sandbox: (SandboxResults & Duration) | undefined
  readonly research: (ResearchResults & Duration) | undefined
  readonly sections: readonly SectionResults[]
  readonly kafkaVersion: string | undefined
}

/** The tables of a run, in Markdown. */
export function renderResults({
  calls,
  durable,
  embeddings,
  transcription,
  sandbox,
  research,
  sections,
}: Results): string {
  const parts = [
    ...(calls ? renderCalls(calls) : []),
    ...(durable ? renderDurable(durable) : []),
    ...(embeddings ? renderEmbeddings(embeddings) : []),
    ...(transcription ? renderTranscription(transcription) : []),
    ...(sandbox ? renderSandbox(sandbox) : []),
    ...(research ? renderResearch(research) : []),
    ...sections.flatMap(({ section, tables }) => [section.title, ...tables]),
  ]
  return `${parts.join('\n\n')}\n`
}

function renderCalls({ samples, footprint }: CallResults): string[] {
  const figures = new Figures(samples)
  const parts = ['## Beside the targets', renderTargets(figures, footprint), ...renderBeside(figures)]
  const whole = figures.cells.filter(({ shape }) => shape === 'whole')
  if (whole.length > 0) parts.push('## Whole answers', renderWhole(figures, whole))
  const streams = figures.cells.filter(({ shape }) => shape === 'streams')
  if (streams.length > 0) parts.push('## Streams', renderStreams(figures, streams))
  return parts
}

const WHOLE_HEAD = [
  ...['callers', 'through', 'answers/s', '× direct', '× proxy', 'p50 ms', 'p95 ms', 'p99 ms', 'added p50 ms'],
  ...['CPU ms/answer', '× proxy', 'broker CPU ms/answer', 'MiB'],
]

function renderWhole(figures: Figures, cells: readonly Cell[]): string {
  const rows = eachRow(figures, cells, (target, cell) => {
    const one = (figure: (sample: Sample) => number) => figures.median(target, cell, figure)
    const rate = (sample: Sample) => sample.answersPerSecond
    const p50 = (sample: Sample) => sample.latencyP50
    const cpu = (sample: Sample) => sample.cpu
    return [
      show(one(rate), 0),
      show(figures.paired(target, 'direct', cell, rate, ratio), 3),
      show(figures.paired(target, 'proxy', cell, rate, ratio), 3),
      show(one(p50), 2),
      show(
        one((sample) => sample.latencyP95),
        2,
      ),
      show(
        one((sample) => sample.latencyP99),
        2,
      ),
      target === 'direct' ? '–' : show(figures.paired(target, 'direct', cell, p50, added), 2),
      show(one(cpu), 3),
      show(figures.paired(target, 'proxy', cell, cpu, ratio), 1),
      show(
        one((sample) => sample.brokerCpu),
        3,
      ),
      target === 'direct'
        ? '–'
        : show(
            one((sample) => sample.residentMib),
            0,
          ),
    ]
  })
  return renderTable(WHOLE_HEAD, rows)
}

const STREAMS_HEAD = [
  ...['streams', 'through', 'tokens/s', '× direct', 'first token p50 ms', 'added ms', 'lag p50 ms', 'lag p99 ms'],
  ...['stalls', 'CPU µs/token', '× proxy', 'broker CPU µs/token', 'MiB'],
]

function renderStreams(figures: Figures, cells: readonly Cell[]): string {
  const rows = eachRow(figures, cells, (target, cell) => {
    const one = (figure: (sample: Sample) => number) => figures.median(target, cell, figure)
    const rate = (sample: Sample) => sample.tokensPerSecond
    const first = (sample: Sample) => sample.firstTokenP50
    const cpu = (sample: Sample) => sample.cpu
    return [
      show(one(rate), 0),
      show(figures.paired(target, 'direct', cell, rate, ratio), 2),
      show(one(first), 1),
      target === 'direct' ? '–' : show(figures.paired(target, 'direct', cell, first, added), 1),
      show(
        one((sample) => sample.lagP50),
        2,
      ),
      show(
        one((sample) => sample.lagP99),
        2,
      ),
      String(sumOf(figures.of(target, cell).map(({ stalls }) => stalls))),
      show(one(cpu), 1),
      show(figures.paired(target, 'proxy', cell, cpu, ratio), 1),
      show(
        one((sample) => sample.brokerCpu),
        1,
      ),
      target === 'direct'
        ? '–'
        : show(
            one((sample) => sample.residentMib),
            0,
          ),
    ]
  })
  return renderTable(STREAMS_HEAD, rows)
}

function eachRow(
  figures: Figures,
  cells: readonly Cell[],
  row: (target: TargetName, cell: Cell) => string[],
): string[][] {
  return cells.flatMap((cell) =>
    figures.targets.map((name) => [String(cell.callers), TITLES[name], ...row(name, cell)]),
  )
}

const TITLES: Record<TargetName, string> = {
  direct: 'nothing (direct)',
  proxy: 'bare proxy',
  hops: 'bare proxy, Kafka between its halves',
  smg: 'smg',
  portkey: 'Portkey',
  embedded: 'Sluice, one process',
  kafka: 'Sluice, Kafka',
  'beside-embedded': 'the other version, one process',
  'beside-kafka': 'the other version, Kafka',
}

function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0)
}

/**
 * docs/internals/benchmarks.md: how it was measured, and the tables of a run.
 *
 * @param existing The document so far, for what the run did not measure.
 */
export function renderDocument(
  { calls, durable, embeddings, transcription, sandbox, research, sections: own, kafkaVersion }: Results,
  commandLine: string,
  existing: string,
): string {
  const kafka = kafkaVersion ? [`Kafka ${kafkaVersion}`] : []
  const [oldCalls = '', ...old] = sectionsOf(existing.slice(existing.indexOf(FACTS)))
  const facts = (duration: Duration, servers: readonly string[] = []) =>
    factsOf(duration, commandLine, [...kafka, ...servers])
  const sections = [
    durable && [DURABLE_INTRODUCTION, facts(durable, durable.servers), ...renderDurable(durable).slice(1)],
    embeddings && [EMBEDDINGS_INTRODUCTION, facts(embeddings), ...renderEmbeddings(embeddings).slice(1)],
    transcription && [TRANSCRIPTION_INTRODUCTION, facts(transcription), ...renderTranscription(transcription).slice(1)],
    sandbox && [SANDBOX_INTRODUCTION, facts(sandbox), ...renderSandbox(sandbox).slice(1)],
    research && [RESEARCH_INTRODUCTION, facts(research), ...renderResearch(research).slice(1)],
    ...SECTIONS.map(({ name, introduction }) => {
      const found = own.find(({ section }) => section.name === name)
      return found && [introduction, facts(found), ...found.tables]
    }),
  ].map((section, at) => (section ? [TITLES_AFTER_CALLS[at], ...section].join('\n\n') : (old[at] ?? '')))
  const first = calls ? `${facts(calls)}\n\n${renderCalls(calls).join('\n\n')}` : oldCalls
  return `${[INTRODUCTION.trimEnd(), first, ...sections].filter((part) => part !== '').join('\n\n')}\n`
}

/** The sections after that of plain calls, in their order. */
const TITLES_AFTER_CALLS = [
  ...[DURABLE_TITLE, EMBEDDINGS_TITLE, TRANSCRIPTION_TITLE, SANDBOX_TITLE, RESEARCH_TITLE],
  ...SECTIONS.map(({ title }) => title),
]

/** What a document says of each measurement, plain calls first; empty where it says nothing. */
function sectionsOf(text: string): string[] {
  const places = TITLES_AFTER_CALLS.map((title) => text.indexOf(`\n${title}\n`))
  const ends = [...places, text.length].filter((place) => place >= 0)
  const from = (place: number) =>
    text
      .slice(
        place,
        ends.find((end) => end > place),
      )
      .trim()
  return [from(0), ...places.map((place) => (place < 0 ? '' : from(place)))]
}

const FACTS = 'Measured on '

function factsOf({ seconds, coresUsed }: Duration, commandLine: string, servers: readonly string[]): string {
  const memoryGib = Math.round(totalmem() / 1024 ** 3)
  const cpu = cpus()[0]?.model.trim() ?? 'unknown CPU'
  const parts = [
    `${availableParallelism()} cores (${cpu})`,
    `${memoryGib} GiB`,
    'Linux',
    `Node ${process.versions.node}`,
  ]
  return [
    `${FACTS}${new Date().toISOString().slice(0, 10)} with \`${commandLine}\`, in ${(seconds / 60).toFixed(1)} minutes, on`,
    `${[...parts, ...servers].join(', ')}. On average ${coresUsed.toFixed(1)} cores of the machine were busy.`,
  ].join(' ')
}

/** How docs/internals/benchmarks.md begins, whatever a run has measured. */
export const INTRODUCTION = `# Benchmarks

<!-- Written by \`npm run bench -- --write\`; change bench/figures/report.ts, not this file. -->

What Sluice adds to a call of the model server behind it, and its durable jobs beside BullMQ and pg-boss. One command
measures it on your machine, in about twenty minutes:

<!-- not run: a benchmark takes an hour and the whole machine; test/bench runs parts of it -->
\`\`\`sh
npm run bench                          # prints the tables below
npm run bench -- --quick               # one short round on code that is not warm: does it run? Two minutes
npm run bench -- --only speed          # beside the bare proxy, with one core for either
npm run bench -- --only speed --with smg,portkey --install  # and beside gateways of others, which it downloads
npm run bench -- --only durable        # the durable jobs only
npm run bench -- --only embeddings     # the embeddings only
npm run bench -- --only transcription  # transcription by the built-in model only
npm run bench -- --only sandbox        # Python in each sandbox only
npm run bench -- --only research       # deep research over a fixed corpus only
npm run bench -- --beside ../old      # beside another version, a checkout with its packages installed
npm run bench -- --help
\`\`\`

It needs Linux and, for Kafka, Java 17 (a local broker is started) or KAFKA_BROKERS; for durable jobs also PostgreSQL
(Debian's package, Docker, or DATABASE_URL) and \`redis-server\`; for transcription Python 3.10 and, for synthetic voices,
\`flite\`. What is missing is skipped, and says so.

**How.** Every part is a process of its own on 127.0.0.1: a mock upstream that answers whole calls at once and streams 64
tokens, the first after 50 ms, then 50 a second; the callers, in closed loops on connections they keep; and what lies
between. *Direct* is nothing. The *bare proxy* is the least a gateway in Node can do: it checks the key, parses the body, and
pipes the call through undici. *smg* (Rust) and *Portkey* (Node) are gateways without a queue, measured when \`--with\` asks for
them, with their default settings; Portkey checks no key. *Sluice, one process* is \`npm start\` with its defaults. *Sluice, Kafka* is one ingress and one
worker around a real broker. Both log at their default level, to a file. The targets are visited in turn, cell by cell, and
every comparison is with the same cell of the same round; figures are medians over the rounds.

**Reading it.** All parts share the cores, so with many callers latency is mostly waiting for a core, and the rate says
how much CPU a call costs everything together. **CPU per answer or token** depends on that least, so it
is the figure to compare; on a crowded machine it still grew to twice. It counts Sluice's processes, and the broker apart. *Lag* is the time from a token's sending by
the upstream to its arrival; a *stall* is a silence over 100 ms inside a stream that the upstream did not make.
`
