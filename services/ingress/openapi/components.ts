import { z } from 'zod'
import { ManyJobs, RedriveDeadLetters } from '#schemas/admin/admin.ts'
import { ChangeProject, CreateKey, RotateKey, UpdateKey } from '#schemas/admin/keys.ts'
import * as admin from '#schemas/answers/admin.ts'
import * as batches from '#schemas/answers/batches.ts'
import * as chat from '#schemas/answers/chat.ts'
import { CompletionAnswer } from '#schemas/answers/completions.ts'
import * as conversations from '#schemas/answers/conversations.ts'
import { ErrorAnswer, MessagesErrorAnswer } from '#schemas/answers/errors.ts'
import { HealthAnswer, ReadyAnswer } from '#schemas/answers/health.ts'
import * as jobs from '#schemas/answers/jobs.ts'
import * as keys from '#schemas/answers/keys.ts'
import { MessageAnswer, TokenCountAnswer } from '#schemas/answers/messages.ts'
import * as models from '#schemas/answers/models.ts'
import * as responses from '#schemas/answers/responses.ts'
import {
  EmbeddingsAnswer,
  ModerationAnswer,
  RerankAnswer,
  SpeechAnswer,
  TranscriptAnswer,
} from '#schemas/answers/tools.ts'
import { CreateBatch } from '#schemas/batches/body.ts'
import { ChatRequest } from '#schemas/chat.ts'
import { CodeBody, CodeResult } from '#schemas/code.ts'
import { CompletionsRequest } from '#schemas/completions.ts'
import { EmbeddingsBody, EmbedInput } from '#schemas/embeddings.ts'
import { FileForm } from '#schemas/files.ts'
import { SubmitJob } from '#schemas/jobs.ts'
import { CountTokensRequest, MessagesRequest } from '#schemas/messages.ts'
import { ModerationPart, ModerationsBody } from '#schemas/moderations.ts'
import { RerankBody } from '#schemas/rerank.ts'
import { ResearchBody } from '#schemas/research/body.ts'
import { CreateConversation, CreateItems, UpdateConversation } from '#schemas/responses/conversation.ts'
import { InputTokensRequest, ResponsesRequest } from '#schemas/responses/request.ts'
import { SpeechBody } from '#schemas/speech.ts'
import { TranscriptionBody, TranslationBody } from '#schemas/transcription/body.ts'
import { UsageReport } from '#schemas/usage.ts'
import { UpdateCompletion } from '#services/ingress/endpoints/chat/stored.ts'

/** Bodies of requests by their names in the document. Forms have their file as well. */
export const REQUESTS = {
  ChatCompletionRequest: ChatRequest,
  UpdateChatCompletionRequest: UpdateCompletion,
  CompletionRequest: CompletionsRequest,
  MessageRequest: MessagesRequest,
  CountTokensRequest,
  ResponseRequest: ResponsesRequest,
  InputTokensRequest,
  CreateConversationRequest: CreateConversation,
  UpdateConversationRequest: UpdateConversation,
  CreateConversationItemsRequest: CreateItems,
  EmbeddingsRequest: EmbeddingsBody.extend({ input: z.union([EmbedInput, z.array(EmbedInput)]) }),
  RerankRequest: RerankBody.extend({
    documents: z.array(z.union([z.string(), z.looseObject({ text: z.string() })])).min(1),
  }),
  ModerationRequest: ModerationsBody.extend({
    input: z.union([z.string(), z.array(z.string()).min(1), z.array(ModerationPart).min(1)]),
  }),
  TranscriptionForm: TranscriptionBody,
  TranslationForm: TranslationBody,
  SpeechRequest: SpeechBody,
  CodeRequest: CodeBody,
  ResearchRequest: ResearchBody,
  SubmitJobRequest: SubmitJob,
  FileForm,
  CreateBatchRequest: CreateBatch,
  CreateMessageBatchRequest: batches.CreateMessageBatch,
  ManyJobsRequest: ManyJobs,
  RedriveDeadLettersRequest: RedriveDeadLetters,
  CreateKeyRequest: CreateKey,
  UpdateKeyRequest: UpdateKey,
  RotateKeyRequest: RotateKey,
  ProjectRequest: ChangeProject,
} as const satisfies Record<string, z.ZodType>
export type RequestName = keyof typeof REQUESTS

/** Answers and events by their names in the document. */
export const ANSWERS = {
  Error: ErrorAnswer,
  MessagesError: MessagesErrorAnswer,
  ChatCompletion: chat.ChatCompletionAnswer,
  ChatCompletionChunk: chat.ChatCompletionChunk,
  StoredChatCompletion: chat.StoredCompletionAnswer,
  StoredChatCompletionList: chat.StoredCompletionListAnswer,
  ChatCompletionDeleted: chat.CompletionDeletedAnswer,
  ChatCompletionMessageList: chat.CompletionMessageListAnswer,
  Completion: CompletionAnswer,
  ResearchCompletion: chat.ResearchAnswer,
  Message: MessageAnswer,
  TokenCount: TokenCountAnswer,
  Response: responses.ResponseAnswer,
  ResponseDeleted: responses.ResponseDeletedAnswer,
  InputItems: responses.InputItemsAnswer,
  InputTokens: responses.InputTokensAnswer,
  Conversation: conversations.ConversationAnswer,
  ConversationDeleted: conversations.ConversationDeletedAnswer,
  ConversationItem: conversations.ConversationItemAnswer,
  ConversationItemList: conversations.ConversationItemListAnswer,
  Embeddings: EmbeddingsAnswer,
  Reranked: RerankAnswer,
  Moderation: ModerationAnswer,
  Transcript: TranscriptAnswer,
  Speech: SpeechAnswer,
  CodeResult,
  Model: models.ModelAnswer,
  ModelInfo: models.ModelInfoAnswer,
  ModelList: models.ModelListAnswer,
  ModelInfoList: models.ModelInfoListAnswer,
  UsageReport,
  Job: jobs.JobAnswer,
  JobList: jobs.JobListAnswer,
  JobDeleted: jobs.JobDeletedAnswer,
  JobInput: jobs.JobInputAnswer,
  JobEvent: jobs.JobEventAnswer,
  StepList: jobs.StepListAnswer,
  WebhookSecretList: jobs.WebhookSecretListAnswer,
  File: batches.FileAnswer,
  FileList: batches.FileListAnswer,
  FileDeleted: batches.FileDeletedAnswer,
  Batch: batches.BatchAnswer,
  BatchList: batches.BatchListAnswer,
  MessageBatch: batches.MessageBatchAnswer,
  MessageBatchList: batches.MessageBatchListAnswer,
  MessageBatchDeleted: batches.MessageBatchDeletedAnswer,
  OperatorJob: jobs.OperatorJobAnswer,
  OperatorJobList: jobs.OperatorJobListAnswer,
  ManyJobs: jobs.ManyJobsAnswer,
  DeadLetter: admin.DeadLetterAnswer,
  DeadLetterDeleted: admin.DeadLetterDeletedAnswer,
  DeadLetterList: admin.DeadLetterListAnswer,
  DeadLettersRedriven: admin.DeadLettersRedrivenAnswer,
  FindingList: admin.FindingListAnswer,
  Delivery: admin.DeliveryAnswer,
  DeliveryList: admin.DeliveryListAnswer,
  OwnKey: keys.OwnKeyAnswer,
  Key: keys.KeyAnswer,
  KeyCreated: keys.KeyCreatedAnswer,
  KeyRotated: keys.KeyRotatedAnswer,
  KeyList: keys.KeyListAnswer,
  Project: keys.ProjectAnswer,
  ProjectList: keys.ProjectListAnswer,
  AuditList: keys.AuditListAnswer,
  Worker: admin.WorkerAnswer,
  WorkerList: admin.WorkerListAnswer,
  PoolList: admin.PoolListAnswer,
  PauseList: admin.PauseListAnswer,
  Pause: admin.PauseAnswer,
  Health: HealthAnswer,
  Ready: ReadyAnswer,
} as const satisfies Record<string, z.ZodType>
export type AnswerName = keyof typeof ANSWERS

/** A schema as JSON Schema has it (draft 2020-12, as OpenAPI 3.1 does). */
export type JsonSchema = Record<string, unknown>

/** Schemas that are written in one turn. */
const TURN_SCHEMAS = 4

/** Every schema of {@link REQUESTS} and {@link ANSWERS}, as `components.schemas`. Answers may get more fields with time. */
export function* componentSchemas(): Generator<undefined, Record<string, JsonSchema>> {
  const named = Object.entries<z.ZodType>({ ...REQUESTS, ...ANSWERS })
  const schemas: Record<string, JsonSchema> = {}
  for (let first = 0; first < named.length; first += TURN_SCHEMAS) {
    Object.assign(schemas, schemasOf(named.slice(first, first + TURN_SCHEMAS)))
    yield
  }
  for (const name of ['TranscriptionForm', 'TranslationForm', 'FileForm']) addFile(schemas[name] ?? {})
  return schemas
}

/** One value, such as a parameter of a query. */
export function jsonSchemaOf(schema: z.ZodType): JsonSchema {
  const { $schema: _, ...rest } = z.toJSONSchema(schema, { io: 'output', unrepresentable: 'any', override: portable })
  return rest
}

/** Where a component stands. */
export function refTo(name: AnswerName | RequestName): JsonSchema {
  return { $ref: pathOf(name) }
}

function schemasOf(named: readonly (readonly [string, z.ZodType])[]): Record<string, JsonSchema> {
  const registry = z.registry<{ id: string }>()
  for (const [id, schema] of named) registry.add(schema, { id })
  const params = { io: 'input', uri: pathOf, unrepresentable: 'any', override: portable } as const
  const { schemas } = z.toJSONSchema(registry, params)
  const stripped = Object.entries(schemas).map(([name, { $schema: _, $id: __, ...schema }]) => [name, schema])
  return Object.fromEntries(stripped)
}

function pathOf(name: string): string {
  return `#/components/schemas/${name}`
}

/** A form has its file beside the fields. */
function addFile(form: JsonSchema): void {
  const { properties = {}, required = [] } = form as { properties?: object; required?: string[] }
  const file = { type: 'string', contentMediaType: 'application/octet-stream', description: 'The file itself' }
  Object.assign(form, { properties: { file, ...properties }, required: ['file', ...required] })
}

/** Character classes that regular expressions of other languages lack, by what they stand for. */
function portable({ jsonSchema }: { jsonSchema: JsonSchema }): void {
  const { pattern } = jsonSchema
  if (typeof pattern === 'string') jsonSchema.pattern = pattern.replaceAll('\\P{Cc}', '[^\\x00-\\x1f\\x7f-\\x9f]')
}
