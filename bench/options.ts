import { parseArgs } from 'node:util'
import type { Cell } from './calls/measure.ts'
import { BESIDE, TARGET_NAMES, type TargetName } from './calls/targets.ts'
import { DURABLE_NAMES, type DurableName } from './durable/targets.ts'
import { GATEWAY_NAMES, type GatewayName } from './gateways/gateways.ts'
import { SECTIONS } from './sections.ts'

const HELP = `Usage: npm run bench -- [options]        (or: node bench/bench.ts [options])

Measures what Sluice adds to calls of its upstream: latency, time to the first token, lag per token, throughput, CPU and
memory; beside calling the upstream directly and through a bare Node proxy, in the same run; the same once more with one core
for whatever stands between, which also measures bursts, sparse calls, starts and idleness (speed). Then durable jobs: submits,
completions and whole jobs, beside BullMQ on Redis and pg-boss on Postgres. Then embeddings, transcription by the
built-in model, Python in each sandbox, deep research over a fixed corpus, one tenant beside a flood of another, overload,
and models beside one that hangs; a larger run only when it is asked for: ${SECTIONS.filter(({ isLarge }) => isLarge)
  .map(({ name }) => name)
  .join(', ')}. Everything runs on this machine, on 127.0.0.1:
a mock upstream, the callers, the proxy, Sluice in one process, and Sluice as ingress and worker through a real Kafka (a
local one is started, which needs Java 17; or KAFKA_BROKERS), a Postgres and a Redis of our own. About 20 minutes. Linux
only.

Options:
      --quick          one short round of the middle cells, on code that is not warm: about 2 minutes
      --only <list>    targets, comma separated: ${TARGET_NAMES.slice(1).join(', ')} (direct is always there); durable: the
                       durable jobs only, or some of them: ${DURABLE_NAMES.map((name) => `durable-${name}`).join(', ')};
                       embeddings, transcription, sandbox, research, ${SECTIONS.map(({ name }) => name).join(', ')}: those only
      --cells <list>   loads, comma separated: whole-1, whole-16, whole-64, whole-256, streams-1, streams-64, streams-256
      --beside <dir>   measure another version of Sluice as well, in the same rounds (plain calls and speed): a checkout with
                       its packages installed
      --with <list>    measure gateways of others as well, in the same rounds (plain calls and speed), of: ${GATEWAY_NAMES.join(', ')};
                       found by SMG_BIN or PORTKEY_BIN, or where --install has put them; else skipped
      --install        download those of --with that are missing (PyPI, npm) into node_modules/.cache: 150 and 25 MB
      --rounds <n>     default 3
      --seconds <n>    of each cell; default 2, and 4 for streams; of overload 30
      --hang <n>       seconds for which one model hangs beside the others; default 15
      --write          put the result into docs/internals/benchmarks.md; what was not measured stays there as it was
      --profile <dir>  write CPU profiles of Sluice's processes there
  -h, --help           show this help
`

/** What a run does. */
export interface Options {
  /** None: plain calls are not measured. */
  readonly targets: readonly TargetName[]
  /** Directory of another version that is measured as well. */
  readonly beside: string | undefined
  /** Gateways of others that are wanted. */
  readonly gateways: readonly GatewayName[]
  /** Whether those that are missing are downloaded. */
  readonly install: boolean
  /** None: durable jobs are not measured. */
  readonly durable: readonly DurableName[]
  readonly embeddings: boolean
  readonly transcription: boolean
  readonly sandbox: boolean
  readonly research: boolean
  /** Names of {@link SECTIONS}. */
  readonly sections: readonly string[]
  /** Questions of the evaluation of research that are asked. */
  readonly questions: number
  /** How often each sandbox is opened, how many programs it runs, and for how long it runs as many as it can. */
  readonly code: { readonly opens: number; readonly runs: number; readonly seconds: number }
  /** Conversations of two, three and four people each, and files that arrive at once. */
  readonly speech: { readonly conversations: number; readonly uploads: number }
  readonly durableSeconds: number
  readonly durableWarmUpSeconds: number
  readonly cells: readonly Cell[]
  readonly rounds: number
  readonly isQuick: boolean
  /** Of {@link Section}; undefined: as each thinks best. */
  readonly sectionSeconds: number | undefined
  readonly seconds: (cell: Cell) => number
  readonly warmUpSeconds: (target: TargetName, cell: Cell) => number
  /** For how long one model hangs beside the others. */
  readonly hangSeconds: number
  readonly write: boolean
  readonly profileDir: string | undefined
}

const ALL_CELLS = ['whole-1', 'whole-16', 'whole-64', 'whole-256', 'streams-1', 'streams-64', 'streams-256']
const QUICK_CELLS = ['whole-1', 'whole-64', 'streams-64']

/** Reads the command line; shows the help and ends when asked to. @throws Error on what it does not understand */
export function readOptions(): Options {
  const { values } = parseArgs({
    options: {
      quick: { type: 'boolean', default: false },
      only: { type: 'string' },
      cells: { type: 'string' },
      beside: { type: 'string' },
      with: { type: 'string' },
      install: { type: 'boolean', default: false },
      rounds: { type: 'string' },
      seconds: { type: 'string' },
      hang: { type: 'string' },
      write: { type: 'boolean', default: false },
      profile: { type: 'string' },
      help: { type: 'boolean', short: 'h', default: false },
    },
  })
  if (values.help) {
    process.stdout.write(HELP)
    process.exit(0)
  }
  const { quick, beside } = values
  if (beside !== undefined && values.write)
    throw new Error('--beside: the document is about one version, leave out --write')
  const { targets, ...others } = readTargets(values.only)
  return {
    ...others,
    targets: beside === undefined ? targets : targets.flatMap(withOther),
    beside,
    gateways: readGateways(values.with),
    install: values.install,
    code: quick ? { opens: 1, runs: 10, seconds: 2 } : { opens: 10, runs: 100, seconds: 8 },
    questions: quick ? 20 : Number.POSITIVE_INFINITY,
    speech: quick ? { conversations: 1, uploads: 10 } : { conversations: 3, uploads: 50 },
    durableSeconds: readNumber('--seconds', values.seconds) ?? (quick ? 1 : 2),
    durableWarmUpSeconds: quick ? 0.5 : 2,
    cells: (values.cells?.split(',') ?? (quick ? QUICK_CELLS : ALL_CELLS)).map(readCell),
    rounds: readNumber('--rounds', values.rounds) ?? (quick ? 1 : 3),
    isQuick: quick,
    sectionSeconds: readNumber('--seconds', values.seconds),
    seconds: (cell) => readNumber('--seconds', values.seconds) ?? (quick ? 1 : cell.shape === 'whole' ? 2 : 4),
    warmUpSeconds: (target, { shape, callers }) => {
      if (quick) return 1
      if (shape === 'streams') return 2
      return target.endsWith('kafka') && callers === 1 ? 12 : 4
    },
    hangSeconds: readNumber('--hang', values.hang) ?? (quick ? 4 : 15),
    write: values.write,
    profileDir: values.profile,
  }
}

/** What is measured. */
type Measured = Pick<
  Options,
  'targets' | 'durable' | 'embeddings' | 'transcription' | 'sandbox' | 'research' | 'sections'
>

function readTargets(only: string | undefined): Measured {
  if (only === undefined) {
    return {
      targets: TARGET_NAMES,
      durable: DURABLE_NAMES,
      embeddings: true,
      transcription: true,
      sandbox: true,
      research: true,
      sections: SECTIONS.filter(({ isLarge }) => !isLarge).map(({ name }) => name),
    }
  }
  const wanted = new Set(only.split(','))
  const durable = DURABLE_NAMES.filter((name) => wanted.has('durable') || wanted.has(`durable-${name}`))
  const targets = TARGET_NAMES.filter((name) => wanted.has(name))
  const known = [
    ...TARGET_NAMES,
    'embeddings',
    'transcription',
    'sandbox',
    'research',
    ...SECTIONS.map(({ name }) => name),
    'durable',
    ...DURABLE_NAMES.map((name) => `durable-${name}`),
  ]
  const unknown = [...wanted].filter((name) => !known.includes(name))
  if (unknown.length > 0) throw new Error(`--only: ${unknown.join(', ')} is none of ${known.join(', ')}`)
  return {
    targets: TARGET_NAMES.filter((name) => targets.length > 0 && (name === 'direct' || wanted.has(name))),
    durable,
    embeddings: wanted.has('embeddings'),
    transcription: wanted.has('transcription'),
    sandbox: wanted.has('sandbox'),
    research: wanted.has('research'),
    sections: SECTIONS.map(({ name }) => name).filter((name) => wanted.has(name)),
  }
}

function readGateways(text: string | undefined): GatewayName[] {
  const wanted = text?.split(',') ?? []
  const unknown = wanted.filter((name) => !GATEWAY_NAMES.some((known) => known === name))
  if (unknown.length > 0) throw new Error(`--with: ${unknown.join(', ')} is none of ${GATEWAY_NAMES.join(', ')}`)
  return GATEWAY_NAMES.filter((name) => wanted.includes(name))
}

function withOther(name: TargetName): TargetName[] {
  return name === 'embedded' || name === 'kafka' ? [name, BESIDE[name]] : [name]
}

function readCell(name: string): Cell {
  const [, shape, callers] = /^(whole|streams)-(\d{1,4})$/.exec(name) ?? []
  if (!shape || Number(callers) < 1) throw new Error(`--cells: ${name} is not like ${ALL_CELLS.join(', ')}`)
  return { shape: shape === 'whole' ? 'whole' : 'streams', callers: Number(callers) }
}

function readNumber(name: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  if (!(Number(text) > 0)) throw new Error(`${name}: ${text} is not a number above 0`)
  return Number(text)
}
