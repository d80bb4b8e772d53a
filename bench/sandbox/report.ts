import { renderTable, show } from '../figures/markdown.ts'
import type { Program, SandboxFigures, SandboxResults } from './figures.ts'

/** The heading that the section of sandboxes begins with. */
export const SANDBOX_TITLE = '## Sandboxed Python'

/** What the section says before its figures. */
export const SANDBOX_INTRODUCTION = `Each sandbox that works on the machine, called directly: without HTTP and the queue, which cost what the first tables say. The programs
are \`print(1)\` and a line plot with a title by matplotlib, one after another by a lone caller. **Warm**: each begins when an interpreter is ready
and nothing else goes on: the last run is cleared away and the interpreters that take its place are loaded. **Cold**: from nothing to the first
result, paid once by a service; zygote and wasm have loaded all libraries then, docker those that the program names. **CPU** is all that a run costs, of the service's side and of every process: for docker
its daemon, containerd, runc, the shim and the container, its removal, and, most of it, the container that is started in its place. Wall
time is noise on a crowded machine, CPU hardly. **Runs/s** are of \`print(1)\`, with two callers a core. **Idle MiB** is the resident memory of one
interpreter that waits for a run: for zygote the server that runs are forked from, which is one however many run; for docker a
container and its shim, without the daemon; for wasm the process in which the interpreters are, divided by their number. Pages
that several processes share count once. Beside them a process that is started for each run, which is always cold: without any sandbox, and in a container by \`docker run\`.`

/** What a sandbox is to reach on a quiet machine. */
const GOALS: readonly { name: string; program: Program; figure: 'cpu' | 'p50'; most: number; words: string }[] = [
  { name: 'zygote', program: 'print', figure: 'cpu', most: 40, words: 'CPU of print(1)' },
  { name: 'zygote', program: 'print', figure: 'p50', most: 25, words: 'p50 of print(1), on an idle machine' },
  { name: 'zygote', program: 'plot', figure: 'p50', most: 130, words: 'p50 of a plot, on an idle machine' },
  { name: 'docker', program: 'print', figure: 'p50', most: 30, words: 'p50 of print(1), on an idle machine' },
  { name: 'wasm', program: 'print', figure: 'cpu', most: 250, words: 'CPU of print(1)' },
]

const WARM = ['warm', 'print p50 ms', 'p95 ms', 'CPU ms', 'plot p50 ms', 'p95 ms', 'CPU ms', 'runs/s', 'idle MiB']
const COLD = ['cold', 'print p50 ms', 'p95 ms', 'plot p50 ms', 'p95 ms']
const BOTH: readonly Program[] = ['print', 'plot']

/** The section's tables, in Markdown. */
export function renderSandbox({ figures, skipped }: SandboxResults): string[] {
  const warm = figures.map(({ name, programs, perSecond, idleMib }) => {
    const times = BOTH.map((program) => programs[program]).flatMap(({ p50, p95, cpu }) => [p50, p95, cpu])
    return [name, ...times.map((value) => show(value, 1)), show(perSecond, 1), show(idleMib, 0)]
  })
  // What is started for each run is always cold.
  const cold = figures.map(({ name, cold, programs }) => {
    const times = BOTH.map((program) => (cold ?? programs)[program]).flatMap(({ p50, p95 }) => [p50, p95])
    return [name, ...times.map((value) => show(value, 0))]
  })
  return [
    SANDBOX_TITLE,
    renderGoals(figures),
    renderTable(WARM, warm),
    renderTable(COLD, cold),
    ...skipped.map((reason) => `Not measured, ${reason}`),
  ]
}

function renderGoals(figures: readonly SandboxFigures[]): string {
  const rows = GOALS.map(({ name, program, figure, most, words }) => {
    const value = figures.find((one) => one.name === name)?.programs[program][figure] ?? Number.NaN
    const verdict = Number.isNaN(value) ? 'not measured' : value <= most ? 'reached' : '**missed**'
    return [`${name}: ${words}`, `≤ ${most} ms`, `${show(value, 1)} ms`, verdict]
  })
  return renderTable(['what', 'target', 'measured', ''], rows)
}
