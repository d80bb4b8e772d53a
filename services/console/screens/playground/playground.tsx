import { signal, useSignal } from '@preact/signals'
import type { FunctionComponent } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import { canCall, fetchJson, isOperator, messageOf } from '#services/console/api/client.ts'
import { usePoll } from '#services/console/parts/parts.tsx'
import { BASE, queryParam } from '#services/console/parts/router.ts'
import { LoadState } from '#services/console/parts/states.tsx'
import { AudioForm, SpeechForm } from './audio/audio.tsx'
import type { Call } from './call/call.ts'
import { type Catalog, catalog, loadCatalog, modelsFor, optionsOf, scalarEndpointsOf } from './call/catalog.ts'
import { CallForm, nonEmptyLines, TextField } from './call/form.tsx'
import { Run, streamed } from './call/run.ts'
import { ChatForm, CompletionsForm } from './chat/chat.tsx'
import { RateMeter } from './chat/conversation.ts'
import { EmbeddingsForm } from './embeddings.tsx'
import { ModerationsForm } from './moderations.tsx'
import { PythonForm } from './python.tsx'
import { ResearchForm } from './research.tsx'

interface Piece {
  readonly text?: string | undefined
  readonly tokens?: number | undefined
}

interface TextCall<Event> {
  readonly path: string
  readonly method: 'responses' | 'messages'
  readonly capability: string
  /** Names of the options of the form, in display order. `values` contains their initial values. */
  readonly options: readonly string[]
  readonly values: Readonly<Record<string, string>>
  readonly input: string
  readonly toRequest: (input: string) => Readonly<Record<string, unknown>>
  readonly pieceOf: (event: Event) => Piece
}

/** Creates a form component for an endpoint that streams text. Input and answer are kept until the browser tab is closed. */
function textForm<Event>({ path, method, capability, options, toRequest, pieceOf, ...initial }: TextCall<Event>) {
  const run = new Run()
  const model = signal('')
  const input = signal(initial.input)
  const values = signal(initial.values)
  const answer = signal({ text: '', note: '' })

  function callOf(filled: Readonly<Record<string, unknown>>): Call {
    const body = { model: model.value, ...toRequest(input.value), ...filled, stream: true }
    return { name: model.value, path, method, body }
  }

  async function send(filled: Readonly<Record<string, unknown>>): Promise<void> {
    const call = callOf(filled)
    const meter = new RateMeter()
    answer.value = { text: '', note: '' }
    const end = await run.start([call], async (abort) => {
      for await (const event of streamed<Event>(call, abort, run)) {
        const { text = '', tokens } = pieceOf(event)
        meter.record(text, tokens)
        if (text) answer.value = { text: answer.value.text + text, note: '' }
      }
    })
    if (end !== 'failed') answer.value = { ...answer.value, note: end === 'stopped' ? 'stopped' : meter.summary() }
  }

  function Answer() {
    const { text, note } = answer.value
    if (!text && !run.isBusy.value && !note) return null
    return (
      <div aria-live="polite">
        <p class="output written">
          {text}
          {run.isBusy.value && <span class="caret" />}
        </p>
        <p class="dim took">{note}</p>
      </div>
    )
  }

  return function TextForm() {
    return (
      <CallForm
        run={run}
        model={{ capability, chosen: model }}
        fields={optionsOf(path, options)}
        values={values}
        verb="Send"
        isReady={input.value !== ''}
        send={send}
        draft={callOf}
        outcome={<Answer />}
      >
        <TextField label="Input" text={input} rows={6} />
      </CallForm>
    )
  }
}

const PATH = '/v1/rerank'

interface Answer {
  readonly results: readonly { readonly index: number; readonly relevance_score: number }[]
}

const run = new Run()
const model = signal('')
const query = signal('How do I get my money back?')
const text = signal('We sell tea.\nRefunds take five days.\nThe shop opens at nine.')
const values = signal<Readonly<Record<string, string>>>({})
const ranked = signal<readonly { readonly line: string; readonly score: number }[]>([])

function RerankForm() {
  const documents = nonEmptyLines(text.value)
  return (
    <CallForm
      run={run}
      model={{ capability: 'rerank', chosen: model }}
      fields={optionsOf(PATH, ['top_n'])}
      values={values}
      verb="Rank"
      isReady={documents.length > 0 && query.value !== ''}
      send={(options) => rank(documents, options)}
      outcome={<Ranked />}
    >
      <TextField label="Query" text={query} />
      <TextField label="Documents, one per line" text={text} rows={6} />
    </CallForm>
  )
}

function Ranked() {
  if (ranked.value.length === 0) return null
  return (
    <ol class="ranked" aria-label="Most relevant first">
      {ranked.value.map(({ line, score }, nth) => (
        <li key={`${nth}-${line}`}>
          <span>{line}</span>
          <meter min={0} max={1} value={Math.max(0, score)} aria-label={`Relevance of: ${line}`} />
          <span class="dim">{score.toFixed(3)}</span>
        </li>
      ))}
    </ol>
  )
}

async function rank(documents: readonly string[], options: Readonly<Record<string, unknown>>): Promise<void> {
  const body = { model: model.value, query: query.value, documents, ...options }
  const call: Call = { name: model.value, path: PATH, body }
  await run.start([call], async (abort) => {
    const { results } = await fetchJson<Answer>(PATH, { method: 'POST', body, signal: abort })
    ranked.value = results.map(({ index, relevance_score: score }) => ({ line: documents[index] ?? '', score }))
  })
}

interface ResponsesEvent {
  readonly type: string
  readonly delta?: string
  readonly response?: { readonly usage?: { readonly output_tokens: number } | null }
}

/** Types of events with visible text. A refusal is shown as text. */
const TEXTS: ReadonlySet<string> = new Set(['response.output_text.delta', 'response.refusal.delta'])

const ResponsesForm = textForm<ResponsesEvent>({
  path: '/v1/responses',
  method: 'responses',
  capability: 'chat',
  options: ['instructions', 'max_output_tokens', 'temperature', 'top_p', 'store', 'truncation', 'service_tier'],
  values: { max_output_tokens: '512' },
  input: 'What is a sluice?',
  toRequest: (input) => ({ input }),
  pieceOf: ({ type, delta, response }) => ({
    text: TEXTS.has(type) ? delta : undefined,
    tokens: response?.usage?.output_tokens,
  }),
})

interface MessagesEvent {
  readonly type: string
  readonly delta?: { readonly type?: string; readonly text?: string }
  readonly usage?: { readonly output_tokens: number }
}

const MessagesForm = textForm<MessagesEvent>({
  path: '/v1/messages',
  method: 'messages',
  capability: 'messages',
  options: ['max_tokens', 'system', 'temperature', 'top_p', 'top_k', 'service_tier'],
  // The Messages API requires max_tokens.
  values: { max_tokens: '512' },
  input: 'What is a sluice?',
  toRequest: (content) => ({ messages: [{ role: 'user', content }] }),
  pieceOf: ({ type, delta, usage }) => ({
    text: type === 'content_block_delta' ? delta?.text : undefined,
    tokens: usage?.output_tokens,
  }),
})

/**
 * Creates a generic form for an endpoint that has no form of its own. The form has one field per value of the body, and
 * shows the answer as JSON.
 */
function fieldForm(path: string, names: readonly string[]) {
  const run = new Run()
  const values = signal<Readonly<Record<string, string>>>({})
  const answer = signal('')

  async function send(body: Readonly<Record<string, unknown>>): Promise<void> {
    await run.start([{ name: path, path, body }], async (abort) => {
      answer.value = JSON.stringify(await fetchJson(path, { method: 'POST', body, signal: abort }), null, 2)
    })
  }

  return function FieldForm() {
    return (
      <CallForm
        run={run}
        fields={optionsOf(path, names)}
        values={values}
        shown={names.length}
        verb="Send"
        isReady={true}
        send={send}
        outcome={answer.value && <p class="output written">{answer.value}</p>}
      >
        <p class="dim">
          Fill in the options, then send the request to <code>{path}</code>.
        </p>
      </CallForm>
    )
  }
}

/** Forms created by {@link fieldForm}, by path. Stored here so that their values survive a change of the screen. */
const fieldForms = new Map<string, Form>()

function formsOf({ reference }: Catalog): readonly Form[] {
  const own = FORMS.filter(({ path }) => reference.paths[path])
  for (const [path, names] of scalarEndpointsOf(reference)) {
    if (fieldForms.has(path) || own.some((form) => form.path === path)) continue
    const id = path.slice('/v1/'.length)
    fieldForms.set(path, { id, name: `${id[0]?.toUpperCase()}${id.slice(1)}`, path, Content: fieldForm(path, names) })
  }
  return [...own, ...fieldForms.values()]
}

const RETRY_DELAY_MS = 2_000

interface Form {
  readonly id: string
  readonly name: string
  readonly path: string
  /** Capability that a model needs. Undefined if the form works without a model. */
  readonly capability?: string
  /** Text that explains how to configure a model with this capability. */
  readonly missing?: string
  readonly Content: FunctionComponent
}

const FORMS: readonly Form[] = [
  {
    ...{ id: 'chat', name: 'Chat', path: '/v1/chat/completions', capability: 'chat', Content: ChatForm },
    missing: 'To add a model, add an entry with the engine llama, openai or anthropic to models.yaml.',
  },
  {
    ...{ id: 'responses', name: 'Responses', path: '/v1/responses', capability: 'chat', Content: ResponsesForm },
    missing: 'To add a model, add an entry with the engine llama, openai or anthropic to models.yaml.',
  },
  {
    ...{ id: 'messages', name: 'Messages', path: '/v1/messages', capability: 'messages', Content: MessagesForm },
    missing: 'To add a model, add an entry with the engine llama, openai or anthropic to models.yaml.',
  },
  {
    ...{ id: 'completions', name: 'Completions', path: '/v1/completions', Content: CompletionsForm },
    capability: 'completions',
    missing: 'To add a model, add an entry with the engine llama or openai to models.yaml.',
  },
  {
    ...{ id: 'audio', name: 'Audio', path: '/v1/audio/transcriptions', Content: AudioForm },
    capability: 'transcription',
    missing: 'To add a model, add an entry with pool: transcription to models.yaml (docs/guides/transcription.md).',
  },
  {
    ...{ id: 'speech', name: 'Speech', path: '/v1/audio/speech', capability: 'speech', Content: SpeechForm },
    missing: 'To add a model, add an entry with task: speech to models.yaml (docs/guides/speech.md).',
  },
  {
    ...{ id: 'embeddings', name: 'Embeddings', path: '/v1/embeddings', Content: EmbeddingsForm },
    capability: 'embeddings',
    missing: 'To add a model, add an entry with pool: embeddings to models.yaml (docs/guides/embeddings.md).',
  },
  {
    ...{ id: 'rerank', name: 'Rerank', path: '/v1/rerank', capability: 'rerank', Content: RerankForm },
    missing: 'To add a model, add an entry with pool: embeddings to models.yaml (docs/guides/embeddings.md).',
  },
  { id: 'moderations', name: 'Moderations', path: '/v1/moderations', Content: ModerationsForm },
  { id: 'python', name: 'Python', path: '/v1/tools/code', Content: PythonForm },
  {
    ...{ id: 'research', name: 'Research', path: '/v1/deep-research', Content: ResearchForm },
    capability: 'deep_research',
    missing: 'To add a model, add an entry with pool: research to models.yaml (docs/guides/deep-research.md).',
  },
]

/** Shows a form for each endpoint of the service, with code that sends the same request. */
export function Playground() {
  return (
    <section class="playground">
      <h1>Playground</h1>
      {canCall.value === false ? <NoCallsScope /> : isOperator.value !== undefined && <Forms />}
    </section>
  )
}

function NoCallsScope() {
  return (
    <div class="card empty">
      <h2>This key cannot call models</h2>
      <p>
        The playground requires the <code>calls</code> scope. This key has the <code>admin</code> scope only, which
        covers the operator screens.
      </p>
      <p>
        Create a key with both scopes on the screen <a href={`${BASE}/keys`}>Keys and projects</a> or with{' '}
        <code>npx sluice keys create --scopes calls,admin</code>, then sign in with it.
      </p>
    </div>
  )
}

function Forms() {
  const problem = useSignal('')
  const isLoaded = useSignal(false)
  usePoll(
    RETRY_DELAY_MS,
    async (abort) => {
      if (isLoaded.peek()) return
      await loadCatalog().then(
        () => {
          isLoaded.value = true
          problem.value = ''
        },
        (error: unknown) => {
          if (!abort.aborted) problem.value = messageOf(error)
        },
      )
    },
    [],
  )
  const forms = catalog.value ? formsOf(catalog.value) : []
  const form = forms.find(({ id }) => id === queryParam('form')) ?? forms[0]
  return (
    <>
      <LoadState problem={problem.value} isLoaded={form !== undefined} />
      <Tabs forms={forms} chosen={form?.id} />
      {form && <SelectedForm key={form.id} form={form} />}
    </>
  )
}

/** Links to the forms, in one line that scrolls in a narrow window. The link of the chosen form is scrolled into view. */
function Tabs({ forms, chosen }: { readonly forms: readonly Form[]; readonly chosen: string | undefined }) {
  const tabs = useRef<HTMLElement>(null)
  useEffect(() => {
    const link = tabs.current?.querySelector<HTMLElement>('[aria-current]')
    if (link && tabs.current)
      tabs.current.scrollLeft = link.offsetLeft - (tabs.current.clientWidth - link.offsetWidth) / 2
  }, [chosen])
  return (
    <nav ref={tabs} class="tabs" aria-label="Endpoints">
      {forms.map(({ id, name, path }) => (
        <a
          key={id}
          href={`${BASE}/playground?form=${id}`}
          title={path}
          aria-current={id === chosen ? 'page' : undefined}
        >
          {name}
        </a>
      ))}
    </nav>
  )
}

function SelectedForm({ form: { name, path, capability, missing, Content } }: { readonly form: Form }) {
  if (capability === undefined || modelsFor(capability).length > 0) return <Content />
  return (
    <div class="card empty">
      <h2>No model for {name}</h2>
      <p>
        This key has access to no model for <code>{path}</code>.{' '}
        {isOperator.value
          ? `${missing} If the service has such a model, create a key with access to the model on the screen Keys and projects.`
          : 'Ask the operator of the service for a model, or for a key with access to one.'}
      </p>
    </div>
  )
}
