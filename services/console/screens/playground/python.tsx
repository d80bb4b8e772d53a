import { signal } from '@preact/signals'
import type { z } from 'zod'
import type { CodeResult } from '#schemas/kinds/code.ts'
import type { Call } from './call/call.ts'
import { optionsOf } from './call/catalog.ts'
import { CallForm, TextField } from './call/form.tsx'
import { Run, streamed } from './call/run.ts'

const PATH = '/v1/tools/code'
const EXAMPLE = `import matplotlib.pyplot as plt
import numpy as np

x = np.linspace(0, 4 * np.pi, 200)
plt.plot(x, np.sin(x) * np.exp(-x / 8))
plt.title("A swing that dies away")
plt.show()
print(f"{len(x)} points, the largest {np.sin(x).max():.3f}")
`

type Result = z.infer<typeof CodeResult>
type Plot = Result['plots'][number]
type Frame =
  | { readonly type: 'code.output.delta'; readonly stream: 'stdout' | 'stderr'; readonly text: string }
  | { readonly type: 'code.plot'; readonly plot: Plot }
  | { readonly type: 'code.completed'; readonly result: Result }

interface PythonRun {
  readonly stdout: string
  readonly stderr: string
  readonly plots: readonly Plot[]
  readonly note: string
  readonly violations: readonly string[]
}

const EMPTY: PythonRun = { stdout: '', stderr: '', plots: [], note: '', violations: [] }

const run = new Run()
const code = signal(EXAMPLE)
const values = signal<Readonly<Record<string, string>>>({})
const pythonRun = signal<PythonRun | undefined>(undefined)

export function PythonForm() {
  return (
    <CallForm
      run={run}
      fields={optionsOf(PATH, ['timeout'])}
      values={values}
      verb="Run"
      isReady={code.value.trim() !== ''}
      send={execute}
      outcome={<Outcome />}
      hint={
        <p class="dim">
          Runs in a sandbox without network access. Includes numpy, pandas, scipy, matplotlib and seaborn;{' '}
          <code>plt.show()</code> returns a figure.
        </p>
      }
    >
      <TextField label="Python" text={code} rows={11} isSource />
    </CallForm>
  )
}

function Outcome() {
  if (!pythonRun.value) return null
  const { stdout, stderr, plots, note, violations } = pythonRun.value
  return (
    <div class="outcome" aria-live="polite">
      {violations.length > 0 && (
        <div class="error-text">
          <p>The sandbox rejected this code. Nothing was run:</p>
          <ul>
            {violations.map((one) => (
              <li key={one}>{one}</li>
            ))}
          </ul>
        </div>
      )}
      <Printed label="Output" text={stdout} />
      <Printed label="Errors" text={violations.length > 0 ? '' : stderr} />
      {plots.map(({ content_base64: base64, filename }, nth) => {
        const address = `data:image/png;base64,${base64}`
        return (
          <figure key={filename}>
            <img src={address} alt={`Figure ${nth + 1} from the code`} />
            <figcaption>
              <a href={address} download={filename}>
                {filename}
              </a>
            </figcaption>
          </figure>
        )
      })}
      <p class="dim took">{note}</p>
    </div>
  )
}

function Printed({ label, text }: { readonly label: string; readonly text: string }) {
  if (!text) return null
  return (
    <div>
      <h2>{label}</h2>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrollable area must be reachable by keyboard. */}
      <pre class="output" tabIndex={0}>
        {text}
      </pre>
    </div>
  )
}

async function execute(options: Readonly<Record<string, unknown>>): Promise<void> {
  const call: Call = {
    name: 'python',
    path: PATH,
    body: { lang: 'python', code: code.value, ...options, stream: true },
  }
  let now = EMPTY
  pythonRun.value = now
  const end = await run.start([call], async (abort) => {
    for await (const frame of streamed<Frame>(call, abort, run)) {
      now = applyFrame(now, frame)
      pythonRun.value = now
    }
  })
  if (end === 'stopped') pythonRun.value = { ...now, note: 'stopped' }
}

function applyFrame(now: PythonRun, frame: Frame): PythonRun {
  if (frame.type === 'code.output.delta') return { ...now, [frame.stream]: now[frame.stream] + frame.text }
  if (frame.type === 'code.plot') return { ...now, plots: [...now.plots, frame.plot] }
  if (frame.type !== 'code.completed') return now
  const { stdout, stderr, plots, violations, exit_code, execution_time } = frame.result
  if (violations.length > 0) return { ...now, stderr, violations, note: '' }
  const ended = exit_code === -1 ? 'Terminated' : `Exit code ${exit_code}`
  return { stdout, stderr, plots, violations, note: `${ended} after ${execution_time.toFixed(2)} s` }
}
