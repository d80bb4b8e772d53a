/** A page of the guide: a document of docs/ by its name without the extension, and the title that the navigation gives it. */
export interface Chapter {
  readonly name: string
  readonly title: string
}

/** Pages for one kind of reader, in the order in which they are read. */
export interface Part {
  readonly title: string
  readonly chapters: readonly Chapter[]
}

/** The guide. Every document of docs/ stands in it once, which a test checks. */
export const PARTS: readonly Part[] = [
  part('Begin', {
    'first-steps': 'First steps',
    comparison: 'What it is for, and what not',
    clients: 'Clients',
  }),
  part('Call it', {
    endpoints: 'Endpoints',
    protocol: 'Calls and streams',
    responses: 'Responses',
    jobs: 'Jobs that outlive a connection',
    batches: 'Files and batches',
    webhooks: 'Webhooks',
    websocket: 'WebSocket',
    streaming: 'Streams and messages',
    errors: 'Errors',
    limits: 'Limits',
    cli: 'Command line',
  }),
  part('Pools', {
    text: 'Text',
    embeddings: 'Embeddings',
    transcription: 'Transcription',
    speech: 'Speech',
    code: 'Python in a sandbox',
    'deep-research': 'Deep research',
    moderations: 'Moderations',
    echo: 'Echo, the model for tests',
  }),
  part('Operate it', {
    operations: 'Operations',
    models: 'Models',
    keys: 'Keys and limits',
    usage: 'Usage and cost',
    reliability: 'Reliability',
    scale: 'Scale',
    benchmarks: 'Benchmarks',
    design: 'Design',
  }),
]

/** Every page, in the order of the guide. */
export const CHAPTERS: readonly Chapter[] = PARTS.flatMap(({ chapters }) => chapters)

function part(title: string, titles: Readonly<Record<string, string>>): Part {
  return { title, chapters: Object.entries(titles).map(([name, title]) => ({ name, title })) }
}
