import { parseArgs } from 'node:util'
import type { Cell } from './measure.ts'
import { TARGET_NAMES, type TargetName } from './targets.ts'

const HELP = `Usage: npm run bench -- [options]        (or: node bench/bench.ts [options])

Measures what Sluice adds to calls of its upstream: latency, time to the first token, lag per token, throughput, CPU and
memory; beside calling the upstream directly and through a bare Node proxy, in the same run. Everything runs on this
machine, on 127.0.0.1: a mock upstream, the callers, the proxy, Sluice in one process, and Sluice as ingress and worker
through a real Kafka (a local one is started, which needs Java 17; or KAFKA_BROKERS). About 6 minutes. Linux only.

Options:
      --quick          one short round of the middle cells, on code that is not warm: about 50 seconds
      --only <list>    targets, comma separated: ${TARGET_NAMES.slice(1).join(', ')} (direct is always there)
      --cells <list>   loads, comma separated: whole-1, whole-16, whole-64, whole-256, streams-1, streams-64, streams-256
      --rounds <n>     default 3
      --seconds <n>    of each cell; default 2 for whole answers, 4 for streams
      --write          put the result into docs/benchmarks.md
      --profile <dir>  write CPU profiles of Sluice's processes there
  -h, --help           show this help
`

/** What a run does. */
export interface Options {
  readonly targets: readonly TargetName[]
  readonly cells: readonly Cell[]
  readonly rounds: number
  readonly seconds: (cell: Cell) => number
  readonly warmUpSeconds: (target: TargetName, cell: Cell) => number
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
      rounds: { type: 'string' },
      seconds: { type: 'string' },
      write: { type: 'boolean', default: false },
      profile: { type: 'string' },
      help: { type: 'boolean', short: 'h', default: false },
    },
  })
  if (values.help) {
    process.stdout.write(HELP)
    process.exit(0)
  }
  const { quick } = values
  return {
    targets: readTargets(values.only),
    cells: (values.cells?.split(',') ?? (quick ? QUICK_CELLS : ALL_CELLS)).map(readCell),
    rounds: readNumber('--rounds', values.rounds) ?? (quick ? 1 : 3),
    seconds: (cell) => readNumber('--seconds', values.seconds) ?? (quick ? 1 : cell.shape === 'whole' ? 2 : 4),
    warmUpSeconds: (target, { shape, callers }) => {
      if (quick) return 1
      if (shape === 'streams') return 2
      return target === 'kafka' && callers === 1 ? 12 : 4
    },
    write: values.write,
    profileDir: values.profile,
  }
}

function readTargets(only: string | undefined): readonly TargetName[] {
  if (only === undefined) return TARGET_NAMES
  const wanted = new Set(['direct', ...only.split(',')])
  const unknown = [...wanted].filter((name) => !TARGET_NAMES.some((known) => known === name))
  if (unknown.length > 0) throw new Error(`--only: ${unknown.join(', ')} is none of ${TARGET_NAMES.join(', ')}`)
  return TARGET_NAMES.filter((name) => wanted.has(name))
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
