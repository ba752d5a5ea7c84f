//! A program on the client that openapi-generator makes: what a user's first one would do.

use escrowmq::apis::configuration::Configuration;
use escrowmq::apis::transactions_api::{self as transactions, CommitTransactionError};
use escrowmq::apis::{Error, consume_api as consume, messages_api as messages};
use escrowmq::models;
use serde_json::json;
use std::env::var;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = Configuration {
        base_path: var("ESCROWMQ_URL")?,
        bearer_access_token: Some(var("ESCROWMQ_API_KEY")?),
        ..Configuration::default()
    };

    let begun = transactions::begin_transaction(&service, begin("live-1"), None).await?;
    println!("begin {}", begun.state);

    let decided = transactions::commit_transaction(&service, "live-1").await?;
    println!("commit {}", decided.state);

    let second = models::MessageInput {
        json: Some(Some(json!({"n": 2}))),
        ..models::MessageInput::new()
    };
    let sent = messages::send_message(&service, "live", second, None).await?;
    println!("send {}", sent.durability);

    let patient = models::ReceiveInput {
        wait_ms: Some(5000),
        ..models::ReceiveInput::new()
    };
    let received = consume::receive_messages(&service, "live", Some(patient)).await?;
    print!("receive");
    let mut entries = Vec::new();
    for message in received.messages {
        print!(" {}", message.payload.unwrap_or_default());
        entries.push(models::AckEntry::new(message.receipt_handle));
    }
    println!();

    let settled = consume::ack_messages(&service, "live", models::AckInput::new(entries)).await?;
    println!("ack {}", settled.accepted);

    transactions::begin_transaction(&service, begin("live-3"), None).await?;
    transactions::rollback_transaction(&service, "live-3", Some(models::RollbackInput::new()))
        .await?;
    match transactions::commit_transaction(&service, "live-3").await {
        Err(Error::ResponseError(response)) => match response.entity {
            Some(CommitTransactionError::DefaultResponse(problem)) => {
                println!("refused {} {}", problem.status, problem.code);
                Ok(())
            }
            other => Err(format!("no problem: {other:?}").into()),
        },
        other => Err(format!("a rolled back transaction: {other:?}").into()),
    }
}

fn begin(id: &str) -> models::BeginInput {
    let message = models::MessageInput {
        json: Some(Some(json!({"n": 1}))),
        ..models::MessageInput::new()
    };
    let message = models::TransactionMessageInput::new("live".into(), message);
    models::BeginInput {
        transaction_id: Some(id.into()),
        ..models::BeginInput::new("live".into(), vec![message])
    }
}
