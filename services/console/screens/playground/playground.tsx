import { useSignal } from '@preact/signals'
import type { FunctionComponent } from 'preact'
import { wordsOf } from '#services/console/api/client.ts'
import { usePoll } from '#services/console/api/poll.ts'
import { isOperator, mayCall } from '#services/console/api/session.ts'
import { Refusal } from '#services/console/parts/refusal.tsx'
import { asked, BASE } from '#services/console/place.ts'
import { AudioForm } from './audio/audio.tsx'
import { ChatForm } from './chat/chat.tsx'
import { CompletionsForm } from './completions/completions.tsx'
import { EmbeddingsForm } from './embeddings/embeddings.tsx'
import { ModerationsForm } from './moderations/moderations.tsx'
import { PythonForm } from './python/python.tsx'
import { RerankForm } from './rerank/rerank.tsx'
import { ResearchForm } from './research/research.tsx'
import { loadServed, modelsFor, served } from './served.ts'
import { SpeechForm } from './speech/speech.tsx'
import { MessagesForm } from './text/messages.ts'
import { ResponsesForm } from './text/responses.ts'

/** How soon it is asked again what is served, as long as the service has not said so. */
const AGAIN_MS = 2_000

interface Form {
  /** In the address. */
  readonly id: string
  readonly name: string
  readonly path: string
  /** What a model must be able to do; absent: it needs none. */
  readonly capability?: string
  /** What to configure where no model can. */
  readonly missing?: string
  readonly Content: FunctionComponent
}

/** A form for each endpoint that people try by hand. */
const FORMS: readonly Form[] = [
  {
    ...{ id: 'chat', name: 'Chat', path: '/v1/chat/completions', capability: 'chat', Content: ChatForm },
    missing: 'An entry of models.yaml whose engine is llama, openai or anthropic makes one.',
  },
  {
    ...{ id: 'responses', name: 'Responses', path: '/v1/responses', capability: 'chat', Content: ResponsesForm },
    missing: 'An entry of models.yaml whose engine is llama, openai or anthropic makes one.',
  },
  {
    ...{ id: 'messages', name: 'Messages', path: '/v1/messages', capability: 'messages', Content: MessagesForm },
    missing: 'An entry of models.yaml whose engine is llama, openai or anthropic makes one.',
  },
  {
    ...{ id: 'completions', name: 'Completions', path: '/v1/completions', Content: CompletionsForm },
    capability: 'completions',
    missing: 'An entry of models.yaml whose engine is llama or openai makes one.',
  },
  {
    ...{ id: 'audio', name: 'Audio', path: '/v1/audio/transcriptions', Content: AudioForm },
    capability: 'transcription',
    missing: 'An entry of models.yaml with pool: transcription makes one (docs/transcription.md).',
  },
  {
    ...{ id: 'speech', name: 'Speech', path: '/v1/audio/speech', capability: 'speech', Content: SpeechForm },
    missing: 'An entry of models.yaml with task: speech makes one (docs/speech.md).',
  },
  {
    ...{ id: 'embeddings', name: 'Embeddings', path: '/v1/embeddings', Content: EmbeddingsForm },
    capability: 'embeddings',
    missing: 'An entry of models.yaml with pool: embeddings makes one (docs/embeddings.md).',
  },
  {
    ...{ id: 'rerank', name: 'Rerank', path: '/v1/rerank', capability: 'rerank', Content: RerankForm },
    missing: 'An entry of models.yaml with pool: embeddings makes one (docs/embeddings.md).',
  },
  { id: 'moderations', name: 'Moderations', path: '/v1/moderations', Content: ModerationsForm },
  { id: 'python', name: 'Python', path: '/v1/tools/code', Content: PythonForm },
  {
    ...{ id: 'research', name: 'Research', path: '/v1/deep-research', Content: ResearchForm },
    capability: 'deep_research',
    missing: 'An entry of models.yaml with pool: research makes one (docs/deep-research.md).',
  },
]

/** A form for each endpoint that is served, and the code of what was just done. */
export function Playground() {
  return (
    <section class="playground">
      <h1>Playground</h1>
      {mayCall.value === false ? <ForCallers /> : isOperator.value !== undefined && <Forms />}
    </section>
  )
}

function ForCallers() {
  return (
    <div class="card empty">
      <h2>This key makes no calls</h2>
      <p>
        It has the scope <code>admin</code> alone, which opens the screens for operators. A form here calls a model, for
        which a key needs the scope <code>calls</code>.
      </p>
      <p>
        Make one under <a href={`${BASE}/keys`}>Keys</a>, or with{' '}
        <code>npx sluice keys create --scopes calls,admin</code>, and sign in with it.
      </p>
    </div>
  )
}

function Forms() {
  const problem = useSignal('')
  const isLoaded = useSignal(false)
  usePoll(
    AGAIN_MS,
    async (abort) => {
      if (isLoaded.peek()) return
      await loadServed().then(
        () => {
          isLoaded.value = true
          problem.value = ''
        },
        (error: unknown) => {
          if (!abort.aborted) problem.value = wordsOf(error)
        },
      )
    },
    [],
  )
  const forms = FORMS.filter(({ path }) => served.value?.reference.paths[path])
  const form = forms.find(({ id }) => id === asked('form')) ?? forms[0]
  return (
    <>
      <Refusal of={problem.value} />
      <nav class="tabs" aria-label="Endpoints">
        {forms.map(({ id, name, path }) => (
          <a
            key={id}
            href={`${BASE}/playground?form=${id}`}
            title={path}
            aria-current={id === form?.id ? 'page' : undefined}
          >
            {name}
          </a>
        ))}
      </nav>
      {!form && !problem.value && <p class="dim">Loading…</p>}
      {form && <Chosen key={form.id} form={form} />}
    </>
  )
}

function Chosen({ form: { name, path, capability, missing, Content } }: { readonly form: Form }) {
  if (capability === undefined || modelsFor(capability).length > 0) return <Content />
  return (
    <div class="card empty">
      <h2>{name}: no model</h2>
      <p>
        No model that this key may use answers <code>{path}</code>. {missing} Where one is there, a key that may use it
        is made with <code>npx sluice keys create</code>.
      </p>
    </div>
  )
}
