/** A page of the guide: folder and name of its file below docs/, and its title in the navigation. The path has the name only: `/docs/guide/jobs`. */
export interface Chapter {
  readonly folder: string
  readonly name: string
  readonly title: string
}

export interface Part {
  readonly title: string
  readonly chapters: readonly Chapter[]
}

/** Navigation of the guide, one part per folder. A test checks that it has every page below docs/ exactly once, except docs/adr/. */
export const PARTS: readonly Part[] = [
  part('Get started', 'get-started', {
    'first-steps': 'First steps',
    clients: 'Clients and SDKs',
    comparison: 'Comparison',
  }),
  part('Guides', 'guides', {
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
    echo: 'Echo test model',
  }),
  part('Operate', 'operate', {
    operations: 'Run a fleet',
    monitoring: 'Monitoring',
    incidents: 'Incidents',
    backup: 'Backup and restore',
    models: 'Models',
    keys: 'API keys and projects',
    usage: 'Usage and cost',
    reliability: 'Reliability',
    scale: 'Scaling',
  }),
  part('Reference', 'reference', {
    endpoints: 'Endpoints',
    compatibility: 'API compatibility',
    settings: 'Settings',
    limits: 'Limits',
    errors: 'Errors',
    events: 'Events and streams',
    metrics: 'Metrics',
    cli: 'Command line',
    glossary: 'Glossary',
  }),
  part('Internals', 'internals', {
    design: 'Design',
    protocol: 'Protocol',
    benchmarks: 'Benchmarks',
    'benchmark-history': 'Benchmark history',
  }),
]

export const CHAPTERS: readonly Chapter[] = PARTS.flatMap(({ chapters }) => chapters)

function part(title: string, folder: string, titles: Readonly<Record<string, string>>): Part {
  return { title, chapters: Object.entries(titles).map(([name, title]) => ({ folder, name, title })) }
}
