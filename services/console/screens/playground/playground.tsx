import { useSignal } from '@preact/signals'
import type { FunctionComponent } from 'preact'
import { messageOf } from '#services/console/api/client.ts'
import { usePoll } from '#services/console/api/poll.ts'
import { canCall, isOperator } from '#services/console/api/session.ts'
import { ErrorText } from '#services/console/parts/error-text.tsx'
import { BASE, queryParam } from '#services/console/router.ts'
import { AudioForm } from './audio/audio.tsx'
import { catalog, loadCatalog, modelsFor } from './catalog.ts'
import { ChatForm } from './chat/chat.tsx'
import { CompletionsForm } from './completions/completions.tsx'
import { EmbeddingsForm } from './embeddings/embeddings.tsx'
import { ModerationsForm } from './moderations/moderations.tsx'
import { PythonForm } from './python/python.tsx'
import { RerankForm } from './rerank/rerank.tsx'
import { ResearchForm } from './research/research.tsx'
import { SpeechForm } from './speech/speech.tsx'
import { MessagesForm } from './text/messages.ts'
import { ResponsesForm } from './text/responses.ts'

const RETRY_DELAY_MS = 2_000

interface Form {
  /** Value of the query parameter `form`. */
  readonly id: string
  readonly name: string
  readonly path: string
  /** Capability that a model needs; absent: the form works without a model. */
  readonly capability?: string
  /** How to configure a model with this capability. */
  readonly missing?: string
  readonly Content: FunctionComponent
}

const FORMS: readonly Form[] = [
  {
    ...{ id: 'chat', name: 'Chat', path: '/v1/chat/completions', capability: 'chat', Content: ChatForm },
    missing: 'To add one, add an entry with the engine llama, openai or anthropic to models.yaml.',
  },
  {
    ...{ id: 'responses', name: 'Responses', path: '/v1/responses', capability: 'chat', Content: ResponsesForm },
    missing: 'To add one, add an entry with the engine llama, openai or anthropic to models.yaml.',
  },
  {
    ...{ id: 'messages', name: 'Messages', path: '/v1/messages', capability: 'messages', Content: MessagesForm },
    missing: 'To add one, add an entry with the engine llama, openai or anthropic to models.yaml.',
  },
  {
    ...{ id: 'completions', name: 'Completions', path: '/v1/completions', Content: CompletionsForm },
    capability: 'completions',
    missing: 'To add one, add an entry with the engine llama or openai to models.yaml.',
  },
  {
    ...{ id: 'audio', name: 'Audio', path: '/v1/audio/transcriptions', Content: AudioForm },
    capability: 'transcription',
    missing: 'To add one, add an entry with pool: transcription to models.yaml (docs/guides/transcription.md).',
  },
  {
    ...{ id: 'speech', name: 'Speech', path: '/v1/audio/speech', capability: 'speech', Content: SpeechForm },
    missing: 'To add one, add an entry with task: speech to models.yaml (docs/guides/speech.md).',
  },
  {
    ...{ id: 'embeddings', name: 'Embeddings', path: '/v1/embeddings', Content: EmbeddingsForm },
    capability: 'embeddings',
    missing: 'To add one, add an entry with pool: embeddings to models.yaml (docs/guides/embeddings.md).',
  },
  {
    ...{ id: 'rerank', name: 'Rerank', path: '/v1/rerank', capability: 'rerank', Content: RerankForm },
    missing: 'To add one, add an entry with pool: embeddings to models.yaml (docs/guides/embeddings.md).',
  },
  { id: 'moderations', name: 'Moderations', path: '/v1/moderations', Content: ModerationsForm },
  { id: 'python', name: 'Python', path: '/v1/tools/code', Content: PythonForm },
  {
    ...{ id: 'research', name: 'Research', path: '/v1/deep-research', Content: ResearchForm },
    capability: 'deep_research',
    missing: 'To add one, add an entry with pool: research to models.yaml (docs/guides/deep-research.md).',
  },
]

/** A form per endpoint that the service has. Each shows code that sends the same request. */
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
        Create a key with both scopes on the screen <a href={`${BASE}/keys`}>Keys</a> or with{' '}
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
  const forms = FORMS.filter(({ path }) => catalog.value?.reference.paths[path])
  const form = forms.find(({ id }) => id === queryParam('form')) ?? forms[0]
  return (
    <>
      <ErrorText text={problem.value} />
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
      {form && <SelectedForm key={form.id} form={form} />}
    </>
  )
}

function SelectedForm({ form: { name, path, capability, missing, Content } }: { readonly form: Form }) {
  if (capability === undefined || modelsFor(capability).length > 0) return <Content />
  return (
    <div class="card empty">
      <h2>No model for {name}</h2>
      <p>
        This key has access to no model for <code>{path}</code>. {missing} If there is one already, create a key with
        access to it: <code>npx sluice keys create</code>
      </p>
    </div>
  )
}
