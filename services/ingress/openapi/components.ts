import { z } from 'zod'
import { BulkJobs, ChangeProject, CreateKey, RedriveDeadLetters, RotateKey, UpdateKey } from '#schemas/admin/admin.ts'
import {
  ActiveRequest,
  ActiveRequestListAnswer,
  RequestAnswer,
  RequestFailuresListAnswer,
  RequestListAnswer,
} from '#schemas/admin/requests.ts'
import * as admin from '#schemas/answers/admin.ts'
import * as batches from '#schemas/answers/batches.ts'
import * as chat from '#schemas/answers/chat.ts'
import * as jobs from '#schemas/answers/jobs.ts'
import * as keys from '#schemas/answers/keys.ts'
import * as models from '#schemas/answers/models.ts'
import { ErrorAnswer, HealthAnswer, MessagesErrorAnswer, ReadyAnswer } from '#schemas/answers/models.ts'
import * as conversations from '#schemas/answers/responses.ts'
import * as responses from '#schemas/answers/responses.ts'
import { CreateBatch } from '#schemas/batches/batch.ts'
import { FileForm } from '#schemas/files.ts'
import { SubmitJob } from '#schemas/jobs.ts'
import { CreateConversation, CreateItems, UpdateConversation } from '#schemas/responses/request.ts'
import { HistoryReport, UsageReport } from '#schemas/usage.ts'
import { UpdateCompletion } from '#services/ingress/endpoints/chat/stored.ts'

/** Request bodies by component name, except those of job endpoints. `addFile` adds the field with the file to a form. */
export const REQUESTS = {
  UpdateChatCompletionRequest: UpdateCompletion,
  CreateConversationRequest: CreateConversation,
  UpdateConversationRequest: UpdateConversation,
  CreateConversationItemsRequest: CreateItems,
  SubmitJobRequest: SubmitJob,
  FileForm,
  CreateBatchRequest: CreateBatch,
  CreateMessageBatchRequest: batches.CreateMessageBatch,
  ManyJobsRequest: BulkJobs,
  RedriveDeadLettersRequest: RedriveDeadLetters,
  CreateKeyRequest: CreateKey,
  UpdateKeyRequest: UpdateKey,
  RotateKeyRequest: RotateKey,
  ProjectRequest: ChangeProject,
} as const satisfies Record<string, z.ZodType>
export type RequestName = keyof typeof REQUESTS

export const ANSWERS = {
  Error: ErrorAnswer,
  MessagesError: MessagesErrorAnswer,
  StoredChatCompletion: chat.StoredCompletionAnswer,
  StoredChatCompletionList: chat.StoredCompletionListAnswer,
  ChatCompletionDeleted: chat.CompletionDeletedAnswer,
  ChatCompletionMessageList: chat.CompletionMessageListAnswer,
  Response: responses.ResponseAnswer,
  ResponseDeleted: responses.ResponseDeletedAnswer,
  InputItems: responses.InputItemsAnswer,
  Conversation: conversations.ConversationAnswer,
  ConversationDeleted: conversations.ConversationDeletedAnswer,
  ConversationItem: conversations.ConversationItemAnswer,
  ConversationItemList: conversations.ConversationItemListAnswer,
  Model: models.ModelAnswer,
  ModelInfo: models.ModelInfoAnswer,
  ModelList: models.ModelListAnswer,
  ModelInfoList: models.ModelInfoListAnswer,
  UsageReport,
  HistoryReport,
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
  AdminBatch: batches.AdminBatchAnswer,
  AdminBatchList: batches.AdminBatchListAnswer,
  MessageBatch: batches.MessageBatchAnswer,
  MessageBatchList: batches.MessageBatchListAnswer,
  MessageBatchDeleted: batches.MessageBatchDeletedAnswer,
  OperatorJob: jobs.OperatorJobAnswer,
  OperatorJobList: jobs.OperatorJobListAnswer,
  ManyJobs: jobs.BulkJobsAnswer,
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
  Request: RequestAnswer,
  RequestList: RequestListAnswer,
  RequestFailuresList: RequestFailuresListAnswer,
  ActiveRequest,
  ActiveRequestList: ActiveRequestListAnswer,
  ModelStateList: admin.ModelStateListAnswer,
  PauseList: admin.PauseListAnswer,
  Pause: admin.PauseAnswer,
  Health: HealthAnswer,
  Ready: ReadyAnswer,
} as const satisfies Record<string, z.ZodType>
export type AnswerName = keyof typeof ANSWERS

/** Schemas of the job endpoints, by component name. */
export interface CallSchemas {
  readonly schemas: Readonly<Record<string, z.ZodType>>
  /** Names of the schemas of multipart forms. */
  readonly forms: readonly string[]
}
export type CallSchema = string & { readonly isCallSchema: true }

export type JsonSchema = Record<string, unknown>

const SCHEMAS_PER_YIELD = 4

export function* componentSchemas({
  schemas: ofCalls,
  forms,
}: CallSchemas): Generator<undefined, Record<string, JsonSchema>> {
  const named = Object.entries<z.ZodType>({ ...REQUESTS, ...ANSWERS, ...ofCalls })
  const schemas: Record<string, JsonSchema> = {}
  for (let first = 0; first < named.length; first += SCHEMAS_PER_YIELD) {
    Object.assign(schemas, schemasOf(named.slice(first, first + SCHEMAS_PER_YIELD)))
    yield
  }
  for (const name of [...forms, 'FileForm']) addFile(schemas[name] ?? {})
  return schemas
}

export function jsonSchemaOf(schema: z.ZodType): JsonSchema {
  const { $schema: _, ...rest } = z.toJSONSchema(schema, { io: 'output', unrepresentable: 'any', override: portable })
  return rest
}

export function refTo(name: AnswerName | RequestName | CallSchema): JsonSchema {
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

function addFile(form: JsonSchema): void {
  const { properties = {}, required = [] } = form as { properties?: object; required?: string[] }
  const file = { type: 'string', contentMediaType: 'application/octet-stream', description: 'Content of the file' }
  Object.assign(form, { properties: { file, ...properties }, required: ['file', ...required] })
}

/** Replaces the character class `\P{Cc}`, which some regular expression engines lack, with an equivalent range. */
function portable({ jsonSchema }: { jsonSchema: JsonSchema }): void {
  const { pattern } = jsonSchema
  if (typeof pattern === 'string') jsonSchema.pattern = pattern.replaceAll('\\P{Cc}', '[^\\x00-\\x1f\\x7f-\\x9f]')
}
