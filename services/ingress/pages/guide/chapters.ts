/** A page of the guide: the name of a file in docs/ without extension, and the title in the navigation. */
export interface Chapter {
  readonly name: string
  readonly title: string
}

/** A section of the navigation. */
export interface Part {
  readonly title: string
  readonly chapters: readonly Chapter[]
}

/** Navigation of the guide. A test checks that it has every page of docs/ exactly once. */
export const PARTS: readonly Part[] = [
  part('Get started', {
    'first-steps': 'First steps',
    comparison: 'Comparison',
    clients: 'Clients and SDKs',
  }),
  part('Guides', {
    text: 'Text generation',
    responses: 'Responses API',
    embeddings: 'Embeddings and reranking',
    transcription: 'Transcription',
    speech: 'Speech',
    moderations: 'Moderation',
    code: 'Code execution',
    'deep-research': 'Deep research',
    jobs: 'Durable jobs',
    batches: 'Files and batches',
    webhooks: 'Webhooks',
    websocket: 'WebSocket',
    streaming: 'Streaming',
    echo: 'Echo test model',
  }),
  part('Operate', {
    operations: 'Operations',
    models: 'Models',
    keys: 'API keys and projects',
    usage: 'Usage and cost',
    reliability: 'Reliability',
    scale: 'Scaling',
  }),
  part('Reference', {
    endpoints: 'Endpoints',
    protocol: 'Protocol',
    errors: 'Errors',
    limits: 'Limits',
    cli: 'Command line',
    glossary: 'Glossary',
  }),
  part('Internals', {
    design: 'Design',
    benchmarks: 'Benchmarks',
  }),
]

export const CHAPTERS: readonly Chapter[] = PARTS.flatMap(({ chapters }) => chapters)

function part(title: string, titles: Readonly<Record<string, string>>): Part {
  return { title, chapters: Object.entries(titles).map(([name, title]) => ({ name, title })) }
}
