import { type Signal, useSignal } from '@preact/signals'
import { useEffect, useMemo, useRef } from 'preact/hooks'
import { type Batch, fetchApi, fetchJson, type Model } from '#services/console/api/client.ts'
import { usdText } from '#services/console/api/clock.ts'
import { Dialog, FormActions, report, useAction } from '#services/console/parts/parts.tsx'
import { BASE, navigate } from '#services/console/parts/router.ts'
import { cellText, FORM_KEY, formText, RETRY_OF_KEY, RowCounts, TABLE_FILE_KEY } from '#shared/tables/answers.ts'
import { Preview } from './preview.tsx'
import {
  CHAT,
  COLUMNS_SHOWN,
  cellsByIdOf,
  ENDED,
  estimateOf,
  estimateText,
  failuresOf,
  formOf,
  HEAD_BYTES,
  NO_TASK,
  problemOf,
  promptsOf,
  requestsOf,
  requestsText,
  type Table,
  type Task,
  tableOf,
} from './table.ts'

const PREVIEW_CHARS = 200
/** Maximum characters of the first cell of a column, which is shown with the name of the column. */
const CELL_CHARS = 24
const POLL_INTERVAL_MS = 500

export function NewBatch() {
  const isOpen = useSignal(false)
  const close = () => {
    isOpen.value = false
  }
  return (
    <>
      <button
        type="button"
        class="primary"
        onClick={() => {
          isOpen.value = true
        }}
      >
        New batch
      </button>
      {isOpen.value && (
        <Dialog title="New batch" onClose={close}>
          {(closeDialog) => <Form close={closeDialog} />}
        </Dialog>
      )}
    </>
  )
}

/** An ended batch of the first rows of a table. */
interface Trial {
  readonly task: Task
  readonly batch: Batch
  readonly counts: RowCounts
}

const TRIAL_ROWS = 3

function Form({ close }: { readonly close: () => void }) {
  const action = useAction()
  const file = useSignal<File | undefined>(undefined)
  const table = useSignal<Table | undefined>(undefined)
  const task = useSignal(NO_TASK)
  const trial = useSignal<Trial | undefined>(undefined)
  const models = useSignal<readonly Model[]>([])
  const closed = useMemo(() => new AbortController(), [])
  useEffect(() => () => closed.abort(), [])
  const choose = (chosen: File | undefined) =>
    action.run(async () => {
      file.value = chosen
      table.value = undefined
      trial.value = undefined
      if (!chosen || /\.(jsonl|ndjson)$/i.test(chosen.name)) return
      const read = await tableOf(chosen, chosen.name)
      // If the user has chosen another file meanwhile, then the rows of the first file are dropped.
      if (file.value !== chosen) return
      table.value = read
      task.value = { ...task.value, prompt: `{${promptColumnOf(read)}}` }
    })
  const tryFirst = () =>
    action.run(async () => {
      const [chosen, rows, asked] = [file.value, table.value, task.value]
      if (!chosen || !rows) return
      const tried = await trialOf(chosen, rows, asked, closed.signal)
      if (file.value === chosen) trial.value = tried
    })
  const submit = async (event: SubmitEvent) => {
    event.preventDefault()
    const [chosen, rows] = [file.value, table.value]
    if (!chosen || (action.problem.value !== '' && !rows)) return
    await action.run(async () => {
      const batch = rows
        ? await createRest(chosen, rows, task.value, trial.value)
        : await createFrom(chosen, await endpointIn(await chosen.slice(0, HEAD_BYTES).text()), chosen.name)
      close()
      navigate(`${BASE}/batches/${batch.id}`)
      report('Batch created.')
    })
  }
  return (
    <form class="fields" onSubmit={(event) => void submit(event)}>
      {/* Enter in a field presses the first button of this type. Because it is disabled, Enter does not create a batch, which costs money. */}
      <button type="submit" disabled style={{ display: 'none' }} />
      <label>
        <span>File with one prompt or request per row</span>
        <input
          type="file"
          accept=".csv,.tsv,.jsonl,.ndjson"
          required
          onChange={({ currentTarget }) => void choose(currentTarget.files?.[0])}
        />
        <small class="dim">CSV or TSV with a header, or JSONL with one request of the API per line</small>
      </label>
      {table.value && (
        <TableFields
          table={table.value}
          task={task.value}
          models={models}
          set={(change) => {
            task.value = { ...task.value, ...change }
          }}
        />
      )}
      {table.value && (
        <TrialRows table={table.value} trial={trial.value} isBusy={action.isBusy.value} run={() => void tryFirst()} />
      )}
      <FormActions
        action={action}
        verb={table.value ? createText(table.value, task.value, models.value, trial.value) : 'Create batch'}
        close={close}
      />
    </form>
  )
}

/** Runs the first rows of a table. */
async function trialOf(file: File, table: Table, task: Task, signal: AbortSignal): Promise<Trial> {
  // The output of the trial ends before the first row that has not run. The output therefore also contains rows without a prompt that directly
  // follow the first rows.
  const next = promptsOf(table, task).find(({ row }) => row > TRIAL_ROWS)?.row ?? table.rows.length + 1
  const form = formText({ ...formOf(task), rows: next - 1 })
  const first = { ...table, rows: table.rows.slice(0, TRIAL_ROWS) }
  const created = await createFromTable(file, first, task, { [FORM_KEY]: form })
  const batch = await endOf(created.id, signal)
  const counts = new RowCounts()
  for (const cells of (await cellsByIdOf(batch, '', signal)).values()) counts.add(cells)
  return { task, batch, counts }
}

const PROMPT_NAMES = ['prompt', 'message', 'text', 'input', 'question', 'content']
const SAMPLE_ROWS = 20

/** Returns the column with a name in {@link PROMPT_NAMES}, otherwise the column with the longest texts in the first rows. */
function promptColumnOf({ columns, rows }: Table): string {
  const named = PROMPT_NAMES.flatMap((name) => columns.filter((column) => column.trim().toLowerCase() === name))
  const charsOf = (column: string) =>
    rows.slice(0, SAMPLE_ROWS).reduce((sum, cells) => sum + cellText(cells.get(column)).length, 0)
  return named[0] ?? columns.toSorted((a, b) => charsOf(b) - charsOf(a))[0] ?? ''
}

interface TrialRowsProps {
  readonly table: Table
  readonly trial: Trial | undefined
  readonly isBusy: boolean
  readonly run: () => void
}

/** A button that runs the first rows. After the run, their answers and the estimated cost of all rows are shown. */
function TrialRows({ table, trial, isBusy, run }: TrialRowsProps) {
  const { rows } = table
  const count = Math.min(TRIAL_ROWS, rows.length)
  const each = trial && costEach(trial)
  const usd = trial && each !== undefined ? each * promptsOf(table, trial.task).length : undefined
  const advice = trial?.counts.advice('the maximum output tokens')
  return (
    <>
      <div class="actions">
        <button type="button" disabled={isBusy} onClick={run}>
          {count === 1 ? 'Try the first row' : `Try the first ${count} rows`}
        </button>
      </div>
      {trial && <Preview key={trial.batch.id} batch={trial.batch} />}
      {trial && (
        <p class="dim" aria-live="polite">
          {count} of {rows.length.toLocaleString('en')} rows have run
          {usd !== undefined && `, and all rows cost about ${usdText(usd)}`}. Create runs the other rows, unless the
          task changes{advice && ' or a row has no valid answer, and then all rows'}.
        </p>
      )}
      {advice && <p class="note bad">{advice}</p>}
    </>
  )
}

/** Cost of one request of a trial. Undefined for a model without a price, and if the model has answered no request. */
function costEach({ batch: { cost_usd, request_counts }, counts }: Trial): number | undefined {
  return cost_usd == null || counts.hasNoAnswer ? undefined : cost_usd / Math.max(1, request_counts.total)
}

/** Label of the button that creates the batch, such as `Create batch: 50 requests, about $0.06`. */
function createText(table: Table, task: Task, models: readonly Model[], trial: Trial | undefined): string {
  if (problemOf(table, task) !== '') return 'Create batch'
  const { prompts, usd } = estimateOf(
    table,
    task,
    models.find(({ id }) => id === task.model),
  )
  const left = (isUsable(trial, task) ? prompts.filter(({ row }) => row > TRIAL_ROWS) : prompts).length
  if (left === 0) return 'Show the batch'
  const each = trial && isEqual(trial.task, task) ? costEach(trial) : undefined
  const cost = each === undefined ? usd !== undefined && `at least ${usdText(usd)}` : `about ${usdText(each * left)}`
  return [`Create batch: ${requestsText(left)}`, cost].filter(Boolean).join(', ')
}

interface TableFieldsProps {
  readonly table: Table
  readonly task: Task
  readonly models: Signal<readonly Model[]>
  readonly set: (change: Partial<Task>) => void
}

function TableFields({ table, task, models, set }: TableFieldsProps) {
  useEffect(() => {
    const abort = new AbortController()
    fetchJson<{ data: readonly Model[] }>('/v1/models', { signal: abort.signal }).then(
      ({ data }) => {
        models.value = data.filter(({ capabilities }) => capabilities.includes('chat'))
        set({ model: models.value[0]?.id ?? '' })
      },
      // If the list of models cannot be loaded, then the user types the model, and the service checks the name.
      () => {},
    )
    return () => abort.abort()
  }, [])
  const model = models.value.find(({ id }) => id === task.model)
  const estimate = estimateOf(table, task, model)
  const [first] = estimate.prompts
  const problem = problemOf(table, task)
  const prompt = useRef<HTMLTextAreaElement>(null)
  const insert = (column: string) => {
    const field = prompt.current
    if (!field) return
    field.setRangeText(`{${column}}`, field.selectionStart, field.selectionEnd, 'end')
    set({ prompt: field.value })
    field.focus()
  }
  return (
    <>
      <div class="pair">
        <label>
          <span>Model</span>
          <input
            list="batch-models"
            required
            autocomplete="off"
            value={task.model}
            onInput={({ currentTarget }) => set({ model: currentTarget.value })}
          />
          <datalist id="batch-models">
            {models.value.map(({ id }) => (
              <option key={id} value={id} />
            ))}
          </datalist>
        </label>
      </div>
      {model?.status === 'failing' && (
        <p class="note bad">The last calls to all servers of this model failed, so requests may wait and fail.</p>
      )}
      <label>
        <span>Prompt with column names in braces</span>
        <textarea
          ref={prompt}
          rows={2}
          required
          value={task.prompt}
          onInput={({ currentTarget }) => set({ prompt: currentTarget.value })}
        />
      </label>
      <fieldset class="chips" aria-label="Columns">
        {table.columns.slice(0, COLUMNS_SHOWN).map((name) => (
          <button key={name} type="button" class="chip" title="Insert into the prompt" onClick={() => insert(name)}>
            {`{${name}}`} <span class="cell dim">{firstCellOf(table, name)}</span>
          </button>
        ))}
      </fieldset>
      <AnswerFields task={task} set={set} />
      <p class={problem ? 'bad' : 'dim'} aria-live="polite">
        {problem || estimateText(estimate)}
      </p>
      {!problem && first && (
        <p class="dim prompt-preview">
          First prompt: <q>{first.text.slice(0, PREVIEW_CHARS)}</q>
        </p>
      )}
    </>
  )
}

function AnswerFields({ task, set }: Pick<TableFieldsProps, 'task' | 'set'>) {
  return (
    <>
      <label>
        <span>Instruction for all rows</span>
        <textarea
          rows={2}
          placeholder="Optional, such as: Answer with one word."
          value={task.system}
          onInput={({ currentTarget }) => set({ system: currentTarget.value })}
        />
      </label>
      <label>
        <span>Allowed answers</span>
        <input
          autocomplete="off"
          placeholder="Optional, such as: positive, negative"
          value={task.choices}
          onInput={({ currentTarget }) => set({ choices: currentTarget.value })}
        />
      </label>
      <details>
        <summary>Advanced</summary>
        <div class="fields pair">
          <label>
            <span>Maximum output tokens</span>
            <input
              type="number"
              min={1}
              max={1_000_000}
              value={task.maxTokens}
              onInput={({ currentTarget }) => set({ maxTokens: currentTarget.value })}
            />
          </label>
          <label>
            <span>Temperature</span>
            <input
              type="number"
              min={0}
              max={2}
              step="any"
              value={task.temperature}
              onInput={({ currentTarget }) => set({ temperature: currentTarget.value })}
            />
          </label>
        </div>
      </details>
    </>
  )
}

/** Beginning of the first cell of a column that is not empty. */
function firstCellOf({ rows }: Table, column: string): string {
  const first =
    rows
      .slice(0, SAMPLE_ROWS)
      .map((row) => cellText(row.get(column)).trim())
      .find(Boolean) ?? 'empty'
  return first.length > CELL_CHARS ? `${first.slice(0, CELL_CHARS)}…` : first
}

/**
 * Creates a batch of the rows that the trial has not run. If the task was changed after the trial, or if a row of the trial failed, then all rows
 * run.
 */
async function createRest(file: File, table: Table, task: Task, trial: Trial | undefined): Promise<Batch> {
  const form = { [FORM_KEY]: formText(formOf(task)) }
  if (!isUsable(trial, task)) return await createFromTable(file, table, task, form)
  if (!promptsOf(table, task).some(({ row }) => row > TRIAL_ROWS)) return trial.batch
  return await createFromTable(file, table, task, { ...form, [RETRY_OF_KEY]: trial.batch.id }, TRIAL_ROWS)
}

/** Whether the rows of the trial need not run again. */
function isUsable(trial: Trial | undefined, task: Task): trial is Trial {
  return trial?.batch.status === 'completed' && failuresOf(trial.batch) === 0 && isEqual(trial.task, task)
}

function isEqual(a: Task, b: Task): boolean {
  return JSON.stringify(a) === JSON.stringify(b)
}

async function createFromTable(
  file: File,
  table: Table,
  task: Task,
  metadata: Readonly<Record<string, string>>,
  afterRow = 0,
): Promise<Batch> {
  const model = await checkModel(task.model, 'chat')
  const requests = requestsOf(table, task, afterRow, model?.capabilities.includes('json') ?? true)
  const more = { [TABLE_FILE_KEY]: await upload(file, 'user_data'), ...metadata }
  return await createFrom(requests, CHAT, file.name, more)
}

/**
 * Returns a model. Undefined for a key without the right to read models, which may still use them.
 *
 * @throws ApiFailure for an unknown model, Error for a model without the capability
 */
async function checkModel(id: string, capability?: Model['capabilities'][number]): Promise<Model | undefined> {
  const response = await fetchApi(`/v1/models/${encodeURIComponent(id)}`, { expects: [403] })
  if (!response.ok) return undefined
  const model = (await response.json()) as Model
  if (capability === undefined || model.capabilities.includes(capability)) return model
  throw new Error(`The model '${id}' has no ${capability}. Choose another one.`)
}

async function endOf(id: string, signal: AbortSignal): Promise<Batch> {
  for (;;) {
    const batch = await fetchJson<Batch>(`/v1/batches/${id}`, { signal })
    if (ENDED.has(batch.status)) return batch
    await new Promise((resolve) => setTimeout(resolve, POLL_INTERVAL_MS))
  }
}

async function createFrom(
  content: Blob,
  endpoint: string,
  name: string,
  more: Readonly<Record<string, string>> = {},
): Promise<Batch> {
  const file = new File([content], name.replace(/\.(csv|tsv)$/i, '.jsonl'))
  const input_file_id = await upload(file, 'batch')
  const body = { input_file_id, endpoint, completion_window: '24h', metadata: { name, ...more } }
  return await fetchJson<Batch>('/v1/batches', { method: 'POST', body })
}

/** @returns Id of the file */
async function upload(file: File, purpose: 'batch' | 'user_data'): Promise<string> {
  const form = new FormData()
  form.append('purpose', purpose)
  form.append('file', file)
  return (await fetchJson<{ id: string }>('/v1/files', { method: 'POST', body: form })).id
}

/**
 * Returns the `url` of the first request. The service reports all other problems of the file.
 *
 * @throws ApiFailure for an unknown model in the first request
 */
async function endpointIn(head: string): Promise<string> {
  const [line = ''] = head.trimStart().split('\n', 1)
  const [, model] = /"model"\s*:\s*"([^"\\]{1,200})"/.exec(line) ?? []
  if (model !== undefined) await checkModel(model)
  const [, url] = /"url"\s*:\s*"(\/[^"]{1,200})"/.exec(line) ?? []
  return url ?? CHAT
}
