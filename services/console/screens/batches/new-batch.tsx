import { useSignal } from '@preact/signals'
import { useEffect, useMemo, useRef } from 'preact/hooks'
import { type Batch, fetchApi, fetchJson, type Model } from '#services/console/api/client.ts'
import { usdText } from '#services/console/api/clock.ts'
import { Dialog, FormActions, report, useAction } from '#services/console/parts/parts.tsx'
import { BASE, navigate } from '#services/console/parts/router.ts'
import {
  type AnswerForm,
  cellText,
  chatBodies,
  customIdOf,
  FORM_KEY,
  formText,
  promptColumns,
  promptOf,
  promptPieces,
  RETRY_OF_KEY,
  TABLE_FILE_KEY,
} from '#shared/tables/answers.ts'
import { Preview } from './preview.tsx'
import { ENDED, failuresOf, HEAD_BYTES, type Table, tableOf } from './table.ts'

const CHAT = '/v1/chat/completions'
const CHARS_PER_TOKEN = 4
const PREVIEW_CHARS = 200
/** Maximum number of columns that are listed below the prompt, each with its first cell, and maximum characters of this cell. */
const COLUMNS_SHOWN = 20
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

interface Task {
  readonly model: string
  /** Prompt with columns in braces, such as `Classify: {review}`. */
  readonly prompt: string
  readonly system: string
  /** Allowed answers, separated by commas. */
  readonly choices: string
  readonly maxTokens: string
  readonly temperature: string
}

const NO_TASK: Task = { model: '', prompt: '', system: '', choices: '', maxTokens: '', temperature: '' }

/** An ended batch of the first rows of a table. */
interface Trial {
  readonly task: Task
  readonly batch: Batch
}

const TRIAL_ROWS = 3

function Form({ close }: { readonly close: () => void }) {
  const action = useAction()
  const file = useSignal<File | undefined>(undefined)
  const table = useSignal<Table | undefined>(undefined)
  const task = useSignal(NO_TASK)
  const trial = useSignal<Trial | undefined>(undefined)
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
      // The output of the trial ends before the first row that has not run. The output therefore also contains rows without a prompt that
      // directly follow the first rows.
      const next = promptsOf(rows, asked).find(({ row }) => row > TRIAL_ROWS)?.row ?? rows.rows.length + 1
      const form = formText({ ...formOf(asked), rows: next - 1 })
      const first = { ...rows, rows: rows.rows.slice(0, TRIAL_ROWS) }
      const created = await createFromTable(chosen, first, asked, { [FORM_KEY]: form })
      const batch = await endOf(created.id, closed.signal)
      if (file.value === chosen) trial.value = { task: asked, batch }
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
          set={(change) => {
            task.value = { ...task.value, ...change }
          }}
        />
      )}
      {table.value && (
        <TrialRows table={table.value} trial={trial.value} isBusy={action.isBusy.value} run={() => void tryFirst()} />
      )}
      <FormActions action={action} verb="Create" close={close} />
    </form>
  )
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
  const requests = trial ? promptsOf(table, trial.task).length : 0
  const { cost_usd, request_counts } = trial?.batch ?? {}
  const usd = cost_usd == null ? undefined : (cost_usd / Math.max(1, request_counts?.total ?? 0)) * requests
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
          task changes.
        </p>
      )}
    </>
  )
}

interface TableFieldsProps {
  readonly table: Table
  readonly task: Task
  readonly set: (change: Partial<Task>) => void
}

function TableFields({ table, task, set }: TableFieldsProps) {
  const models = useSignal<readonly Model[]>([])
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
  const prompts = promptsOf(table, task)
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
      <label>
        <span>Prompt, in which a column in braces stands for its cell</span>
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
      <p class="dim" aria-live="polite">
        {estimateOf(table, prompts, task, models.value.find(({ id }) => id === task.model)?.price)}
      </p>
      {prompts[0] && (
        <p class="dim prompt-preview">
          First prompt: <q>{prompts[0].text.slice(0, PREVIEW_CHARS)}</q>
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

/** Returns the prompts that are not empty, each with the number of its row. The rows have the same numbers in `sluice batch`. */
function promptsOf({ rows }: Table, { prompt }: Task): { readonly row: number; readonly text: string }[] {
  const pieces = promptPieces(prompt)
  return rows.flatMap((cells, nth) => {
    const text = promptOf(cells, pieces)
    return text === undefined ? [] : [{ row: nth + 1, text }]
  })
}

function estimateOf(
  { rows }: Table,
  prompts: readonly { readonly text: string }[],
  { system }: Task,
  price: Model['price'],
): string {
  const chars = prompts.reduce((sum, { text }) => sum + text.length + system.length, 0)
  const tokens = Math.ceil(chars / CHARS_PER_TOKEN)
  const usd = price && (tokens * price.input_per_million) / 1e6 + prompts.length * price.per_call
  const empty = rows.length - prompts.length
  return [
    `${prompts.length.toLocaleString('en')} ${prompts.length === 1 ? 'request' : 'requests'}`,
    empty > 0 && `${empty.toLocaleString('en')} without a prompt`,
    `about ${tokens.toLocaleString('en')} input tokens`,
    usd !== undefined && `about ${usdText(usd)} plus the price of the output tokens`,
  ]
    .filter(Boolean)
    .join(', ')
}

function choicesOf({ choices }: Task): readonly string[] | undefined {
  const words = choices.split(',').flatMap((word) => word.trim() || [])
  return words.length > 0 ? words : undefined
}

function formOf(task: Task): AnswerForm {
  const choices = choicesOf(task)
  return { prompt: promptColumns(promptPieces(task.prompt)), ...(choices && { choices }) }
}

/** @throws Error for a prompt without columns or with an unknown column */
function requestsOf(table: Table, task: Task, afterRow: number, isJson: boolean): Blob {
  const { prompt } = task
  const numberIn = (text: string) => (text === '' ? undefined : Number(text))
  const bodyWith = chatBodies({
    ...{ model: task.model, system: task.system.trim(), choices: choicesOf(task), isJson },
    ...{ maxTokens: numberIn(task.maxTokens), temperature: numberIn(task.temperature) },
  })
  const used = promptColumns(promptPieces(prompt))
  const unknown = used.find((name) => !table.columns.includes(name))
  if (unknown !== undefined) throw new Error(`The table has no column '${unknown}'. Write {{ for a brace.`)
  if (used.length === 0) throw new Error('The prompt must contain a column in braces.')
  const lines = promptsOf(table, task)
    .filter(({ row }) => row > afterRow)
    .map(({ row, text }) => {
      const line = { custom_id: customIdOf(row), method: 'POST', url: CHAT, body: bodyWith(text) }
      return `${JSON.stringify(line)}\n`
    })
  if (lines.length === 0) throw new Error(`The prompt is empty in every row (column ${used.join(', ')}).`)
  return new Blob(lines)
}

/**
 * Creates a batch of the rows that the trial has not run. If the task was changed after the trial, or if a row of the trial failed, then all rows
 * run.
 */
async function createRest(file: File, table: Table, task: Task, trial: Trial | undefined): Promise<Batch> {
  const isUsed = trial?.batch.status === 'completed' && failuresOf(trial.batch) === 0 && isEqual(trial.task, task)
  const form = { [FORM_KEY]: formText(formOf(task)) }
  if (!isUsed) return await createFromTable(file, table, task, form)
  if (!promptsOf(table, task).some(({ row }) => row > TRIAL_ROWS)) return trial.batch
  return await createFromTable(file, table, task, { ...form, [RETRY_OF_KEY]: trial.batch.id }, TRIAL_ROWS)
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
